"""The members of a consumer group: what each says and has. Pure.

Place: subclasses of ../members/reconciliation.py, changed by its `reconcile` and by membership.py, kept by
ConsumerRoster, written by saved.py. ConsumerHeartbeat is between the handler, which knows fields and topic names, and
group.py, which knows the rules. Partitions are sets of partition keys; times are seconds of the clock's monotonic().
Invariant: an instance id belongs to one member. A partition is added only when no other member holds it: no partition
ever has two holders.
Source: KIP-848.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.agent.groups.classic.roster import protocols_bytes
from headrace.agent.groups.group_values import MemberProtocol
from headrace.agent.groups.members.membership import MemberRoster
from headrace.agent.groups.members.reconciliation import OwnerHeartbeat, OwnerMember
from headrace.agent.limits.client_memory import text_bytes


def pattern_of(topic_pattern: str, principal: str, client_host: str) -> str:
    """A topic pattern of one client: the pattern itself, with the principal and address if ACLs are enforced."""
    return "\0".join((topic_pattern, principal, client_host)) if topic_pattern and principal else topic_pattern


OwnedTopics = Sequence[tuple[uuid.UUID, Sequence[int]]]
"""(topic id, partition indexes), as a member names what it owns."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat(OwnerHeartbeat):
    """ConsumerGroupHeartbeat; None: not sent, so nothing changed."""

    topic_pattern: str | None = None
    assignor: str | None = None
    owned_topics: OwnedTopics | None = None
    """What the member owns, as it names it; coordinator.py makes `owned` of it."""
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


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """The classic side of a member that speaks the classic protocol (JoinGroup, SyncGroup): what that knows and KIP-848
    does not.
    """

    session_timeout: float
    protocols: tuple[MemberProtocol, ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember(OwnerMember[ConsumerHeartbeat]):
    """A member of either protocol."""

    topic_pattern: str = ""
    assignor: str | None = None
    classic: ClassicSide | None = None
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

    def size_bytes(self) -> int:
        """The memory that it uses, about."""
        texts = text_bytes(self.assignor, self.topic_pattern, self.subscription_pattern, self.principal)
        protocols = protocols_bytes(self.classic.protocols) if self.classic else 0
        return OwnerMember.size_bytes(self) + texts + protocols

    def updated_by(self, request: ConsumerHeartbeat) -> ConsumerMember:
        """See GroupMember. It speaks the consumer protocol from now on."""
        updated = OwnerMember.updated_by(self, request)
        return updated if updated.classic is None else replace(updated, classic=None)

    def _said_by(self, request: ConsumerHeartbeat) -> dict[str, Any]:
        return OwnerMember._said_by(self, request) | {
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
