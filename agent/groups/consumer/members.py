"""The members of a consumer group: what each says, what each has, its next step towards its part of the target. Pure.

Place: a subclass of ../members/member.py, changed by `reconcile` and membership.py, kept by ConsumerRoster, written
by saved.py. ConsumerHeartbeat is between the handler, which knows fields and topic names, and group.py, which knows
the rules. `reconcile` is called on every heartbeat of a member that is not at its part of the target yet. Partitions
are sets of partition keys; times are seconds of the clock's monotonic().
Invariant: a member is immutable; `assigned` and `to_revoke` are disjoint, and together they are what the member may
be consuming. `to_revoke` is empty unless it is UNREVOKED. An instance id belongs to one member.
A partition is added only when no other member holds it, and a partition that the member is to
give up stays with it until it shows that it no longer owns it. So no partition ever has two holders.
Source: KIP-848 (member epochs, reconciliation), Kafka's CurrentAssignmentBuilder.
"""

from __future__ import annotations

import enum
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from headrace.agent.groups.classic.roster import protocols_bytes
from headrace.agent.groups.group_values import MemberProtocol
from headrace.agent.groups.members.member import NOTHING, PARTITION_BYTES, GroupMember, MemberHeartbeat, Partitions
from headrace.agent.groups.members.membership import MemberRoster
from headrace.agent.limits.client_memory import text_bytes


class MemberState(enum.Enum):
    """How far a member has come from what it has to what it is to have."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    """It was asked to give partitions up and has not confirmed it yet."""
    UNRELEASED = "unreleased"
    """Another member still holds partitions that it is to get."""


def pattern_of(topic_pattern: str, principal: str, client_host: str) -> str:
    """A topic pattern of one client: the pattern itself, with the principal and address if ACLs are enforced."""
    return "\0".join((topic_pattern, principal, client_host)) if topic_pattern and principal else topic_pattern


OwnedTopics = Sequence[tuple[uuid.UUID, Sequence[int]]]
"""(topic id, partition indexes), as a member names what it owns."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat(MemberHeartbeat):
    """ConsumerGroupHeartbeat; None: not sent, so nothing changed."""

    rebalance_timeout: float | None = None
    topic_pattern: str | None = None
    assignor: str | None = None
    owned_topics: OwnedTopics | None = None
    """What the member owns, as it names it; coordinator.py makes `owned` of it."""
    owned: Partitions | None = None
    principal: str = ""
    """The principal of the client, if ACLs are enforced: its pattern matches topics that it may describe."""

    @property
    def subscription_pattern(self) -> str:
        """What its pattern matches depends on: see topics.py."""
        return pattern_of(self.topic_pattern or "", self.principal, self.client_host)

    @property
    def subscribes(self) -> bool:
        """It says what the member subscribes to."""
        return self.topic_names is not None or self.topic_pattern is not None

    @property
    def is_full(self) -> bool:
        """Sent when joining and after an error: the member asks for its whole assignment."""
        return self.rebalance_timeout is not None and self.subscribes and self.owned is not None


NO_PARTITIONS: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """The classic side of a member that speaks the classic protocol (JoinGroup, SyncGroup): what that knows and KIP-848
    does not.
    """

    session_timeout: float
    protocols: tuple[MemberProtocol, ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember(GroupMember[ConsumerHeartbeat]):
    """A member of either protocol."""

    rebalance_timeout: float = 0.0
    topic_pattern: str = ""
    assignor: str | None = None
    state: MemberState = MemberState.STABLE
    to_revoke: Partitions = NOTHING
    classic: ClassicSide | None = None
    since: Mapping[int, int] = field(default_factory=lambda: NO_PARTITIONS)
    """Partition key -> the member epoch with which it got a partition that it holds; without those that an agent of an
    earlier release stored."""
    principal: str = ""
    """The principal under which it subscribed to a pattern; empty if ACLs were not enforced."""

    @property
    def subscription_pattern(self) -> str:
        """Its pattern, as topics.py matches it."""
        return pattern_of(self.topic_pattern, self.principal, self.client_host)

    @property
    def may_be_replaced(self) -> bool:
        """Another process may join as the same static member: members of the classic protocol do so at any time."""
        return self.is_away or self.classic is not None

    @property
    def holds(self) -> Partitions:
        """What it may be consuming."""
        return self.assigned | self.to_revoke

    def has_had(self, keys: Collection[int], epoch: int) -> bool:
        """Return whether it was at this epoch, and has held all these partitions ever since."""
        return bool(keys) and epoch < self.epoch and all(key in self.since and self.since[key] <= epoch for key in keys)

    def size_bytes(self) -> int:
        """The memory that it uses, about."""
        texts = text_bytes(self.assignor, self.topic_pattern, self.subscription_pattern, self.principal)
        protocols = protocols_bytes(self.classic.protocols) if self.classic else 0
        partitions = PARTITION_BYTES * (len(self.to_revoke) + len(self.since))
        return GroupMember.size_bytes(self) + texts + partitions + protocols

    def updated_by(self, request: ConsumerHeartbeat) -> ConsumerMember:
        """See GroupMember. It speaks the consumer protocol from now on."""
        updated = GroupMember.updated_by(self, request)
        return updated if updated.classic is None else replace(updated, classic=None)

    def _said_by(self, request: ConsumerHeartbeat) -> dict[str, Any]:
        return GroupMember._said_by(self, request) | {
            "rebalance_timeout": request.rebalance_timeout,
            "topic_pattern": request.topic_pattern,
            "assignor": request.assignor,
            "principal": request.principal,
        }

    def subscribes_as(self, other: ConsumerMember) -> bool:
        """Return whether the other one would be given the same by any assignor that both can ask for."""
        return (self.topic_names, self.subscription_pattern, self.assignor) == (
            other.topic_names,
            other.subscription_pattern,
            other.assignor,
        )

    def back_as(self, member_id: str) -> ConsumerMember:
        """A static member that came back, maybe as another process."""
        return replace(GroupMember.back_as(self, member_id), state=MemberState.STABLE, to_revoke=NOTHING)

    def gone_for_a_while(self) -> ConsumerMember:
        """A static member that left and means to come back: what it was to revoke is free."""
        return replace(GroupMember.gone_for_a_while(self), state=MemberState.STABLE, to_revoke=NOTHING)


class ConsumerRoster(MemberRoster[ConsumerMember]):
    """Members by id, in the order they joined; and who holds which partition."""

    def __init__(self) -> None:
        super().__init__()
        self._holders: dict[int, str] = {}
        self._patterns: Counter[str] = Counter()

    @property
    def patterns(self) -> list[str]:
        """The topic patterns that members subscribe to, as `pattern_of` in members.py."""
        return list(self._patterns)

    def holder(self, partition: int) -> str | None:
        """Return who may be consuming the partition."""
        return self._holders.get(partition)

    def _note(self, member: ConsumerMember) -> None:
        super()._note(member)
        if member.topic_pattern:
            self._patterns[member.subscription_pattern] += 1
        for partition in member.holds:
            holder = self._holders.setdefault(partition, member.member_id)
            assert holder == member.member_id, f"partition {partition} is held by {holder} and {member.member_id}"

    def _forget(self, member: ConsumerMember) -> None:
        super()._forget(member)
        if member.topic_pattern:
            self._patterns -= Counter([member.subscription_pattern])
        for partition in member.holds:
            del self._holders[partition]


def reconcile(
    member: ConsumerMember,
    *,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    held_by_others: Callable[[int], bool],
) -> ConsumerMember:
    """The member after one step; itself when there is none to take.

    `owned`: what it says it owns, None when it did not say.
    """
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return member
    if member.state is MemberState.UNREVOKED:
        if owned is None or owned & member.to_revoke:
            return member
        member = member.at_epoch(member.epoch + 1)  # that revocation is done; maybe the target has moved on
    return _step(member, target, target_epoch, owned, held_by_others)


def _step(
    member: ConsumerMember,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    held_by_others: Callable[[int], bool],
) -> ConsumerMember:
    to_revoke = member.assigned - target
    if to_revoke and (owned is None or owned & to_revoke):
        # it keeps its epoch until it has given them up
        return replace(member, state=MemberState.UNREVOKED, assigned=member.assigned & target, to_revoke=to_revoke)
    missing = target - member.assigned
    unreleased = frozenset(key for key in missing if held_by_others(key))
    assigned, at_target = target - unreleased, member.at_epoch(target_epoch)
    return replace(
        at_target,
        state=MemberState.UNRELEASED if unreleased else MemberState.STABLE,
        assigned=assigned,
        to_revoke=NOTHING,
        since=_since(member, assigned, at_target.epoch),
    )


def _since(member: ConsumerMember, assigned: Partitions, epoch: int) -> Mapping[int, int]:
    """Return the epochs with which it got these partitions, the new ones with `epoch`. What was stored by an earlier
    release it has had since its last epoch at least.
    """
    return {key: member.since.get(key, member.epoch) if key in member.assigned else epoch for key in assigned}
