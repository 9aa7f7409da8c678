"""Members that give up what they have before another gets it: their steps to the target. Consumer and streams groups.

Place: between member.py, membership.py and the kinds of groups of which a part of the target has one holder. A kind
says what a key is (a partition, or a task), and when a key is not free for a member. `reconcile` is called on each
heartbeat of a member that is not at its part of the target yet. Pure; times are seconds of the clock's monotonic().
Invariant: a member is immutable; `assigned` and `to_revoke` are disjoint, and together they are what the member may
be using. `to_revoke` is empty unless it is UNREVOKED. A key is added only when it is free, and one that the member is
to give up stays with it until it shows that it no longer owns it.
Source: KIP-848 (member epochs, reconciliation), KIP-1071, Kafka's CurrentAssignmentBuilder.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self, TypeVar

from headrace.agent.groups.members.member import NOTHING, PARTITION_BYTES, GroupMember, MemberHeartbeat, Partitions
from headrace.agent.groups.members.membership import GroupEpochs, GroupMembership


class MemberState(enum.Enum):
    """How far a member has come from what it has to what it is to have."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    """It was asked to give keys up and has not confirmed it yet."""
    UNRELEASED = "unreleased"
    """Keys that it is to get are not free yet."""


@dataclass(frozen=True, slots=True)
class OwnerHeartbeat(MemberHeartbeat):
    """A heartbeat that may say what the member owns; None: not sent."""

    rebalance_timeout: float | None = None
    owned: Partitions | None = None


NO_EPOCHS: Mapping[int, int] = MappingProxyType({})
H = TypeVar("H", bound=OwnerHeartbeat)


@dataclass(frozen=True, slots=True)
class OwnerMember(GroupMember[H]):
    """A member that owns what it is assigned. `rebalance_timeout`: how long it may take to give something up."""

    rebalance_timeout: float = 0.0
    state: MemberState = MemberState.STABLE
    to_revoke: Partitions = NOTHING
    since: Mapping[int, int] = field(default_factory=lambda: NO_EPOCHS)
    """Key -> the member epoch with which it got it; without those that an agent of an earlier release stored."""

    @property
    def holds(self) -> Partitions:
        """What it may be using."""
        return self.assigned | self.to_revoke

    def has_had(self, keys: Collection[int], epoch: int) -> bool:
        """Return whether it was at this epoch, and has held all these keys ever since."""
        return bool(keys) and epoch < self.epoch and all(key in self.since and self.since[key] <= epoch for key in keys)

    def shows(self, epoch: int, owned: Partitions | None) -> bool:
        """Return whether this is the member's epoch, or the one before it, from a member that missed the last answer
        and owns no more than that says.
        """
        if epoch == self.epoch:
            return True
        missed = epoch == self.previous_epoch and epoch < self.epoch
        return missed and owned is not None and owned <= self.assigned

    def is_settled(self, epoch: int) -> bool:
        """Return whether it has reached the target of that epoch."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    def size_bytes(self) -> int:
        """The memory that it uses, about."""
        return GroupMember.size_bytes(self) + PARTITION_BYTES * (len(self.to_revoke) + len(self.since))

    def _said_by(self, request: H) -> dict[str, Any]:
        return GroupMember._said_by(self, request) | {"rebalance_timeout": request.rebalance_timeout}

    def back_as(self, member_id: str) -> Self:
        """A static member that came back, maybe as another process."""
        return replace(GroupMember.back_as(self, member_id), state=MemberState.STABLE, to_revoke=NOTHING)

    def gone_for_a_while(self) -> Self:
        """A static member that left and means to come back: what it was to revoke is free."""
        return replace(GroupMember.gone_for_a_while(self), state=MemberState.STABLE, to_revoke=NOTHING)


M = TypeVar("M", bound=OwnerMember[Any])


class TargetParts(GroupEpochs):
    """Both epochs, and each member's part of the target."""

    def __init__(self, on_rise: Callable[[], None] = lambda: None) -> None:
        """`on_rise` is called with each new group epoch."""
        super().__init__(on_rise)
        self._parts: dict[str, Partitions] = {}

    def of(self, member_id: str) -> Partitions:
        """Return what the member shall have."""
        return self._parts.get(member_id, NOTHING)

    def give(self, member_id: str, part: Partitions) -> None:
        """Set a member's part from outside: when it is restored or converted."""
        self._parts[member_id] = part

    def rename(self, member_id: str, successor_id: str) -> None:
        """Give the part of a static member to the member id under which it came back."""
        self._parts[successor_id] = self._parts.pop(member_id, NOTHING)

    def forget(self, member_id: str) -> None:
        """Remove a member that left: its part is free, and the target has to be made again."""
        self._parts.pop(member_id, None)
        super().forget(member_id)


class OwnerMembership(GroupMembership[M]):
    """What memberships have in common of which members own what they are assigned."""

    target: TargetParts

    def expect(self, now: float, member: M) -> None:
        """It has its rebalance timeout, from now on, to do what it was asked to."""
        self.deadlines.expect(now, member.member_id, member.rebalance_timeout)

    def step(self, now: float, member: M, owned: Partitions | None, held: Callable[[int], bool]) -> M:
        """Bring the member one step closer to its part of the target; `held`: see `reconcile`."""
        part, epoch = self.target.of(member.member_id), self.target.epoch
        after = reconcile(member, target=part, target_epoch=epoch, owned=owned, held_by_others=held)
        if after is not member and after != member:
            self.put(after)
            if after.state is MemberState.UNREVOKED:
                self.expect(now, after)
            else:
                self.deadlines.met(after.member_id)
        return after

    def adopt_with(self, now: float, member: M, part: Partitions) -> None:
        """A member that is there already, with its part of the target."""
        self.adopt(now, member)
        self.target.give(member.member_id, part)
        if member.state is MemberState.UNREVOKED:
            self.expect(now, member)

    def _state(self) -> str:
        if not len(self.roster):
            return "Empty"
        if self.target.group_epoch > self.target.epoch:
            return "Assigning"
        return "Stable" if all(member.is_settled(self.target.epoch) for member in self.roster) else "Reconciling"


def reconcile(
    member: M,
    *,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    held_by_others: Callable[[int], bool],
) -> M:
    """The member after one step; itself when there is none to take.

    `owned`: what it says it owns, None when it did not say. `held_by_others`: whether a key is not free for it.
    """
    if member.is_settled(target_epoch):
        return member
    if member.state is MemberState.UNREVOKED:
        if owned is None or owned & member.to_revoke:
            return member
        member = member.at_epoch(member.epoch + 1)  # that revocation is done; maybe the target has moved on
    return _step(member, target, target_epoch, owned, held_by_others)


def _step(
    member: M, target: Partitions, target_epoch: int, owned: Partitions | None, held_by_others: Callable[[int], bool]
) -> M:
    to_revoke = member.assigned - target
    if to_revoke and (owned is None or owned & to_revoke):
        # it keeps its epoch until it has given them up; what it gave up before is not its own any more
        return replace(
            member,
            state=MemberState.UNREVOKED,
            assigned=member.assigned & target,
            to_revoke=to_revoke,
            since={key: epoch for key, epoch in member.since.items() if key in member.assigned},
        )
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


def _since(member: OwnerMember[Any], assigned: Partitions, epoch: int) -> Mapping[int, int]:
    """Return the epochs with which it got these keys, the new ones with `epoch`. What was stored by an earlier release
    it has had since its last epoch at least.
    """
    return {key: member.since.get(key, member.epoch) if key in member.assigned else epoch for key in assigned}
