"""What becomes of the members of a group: they come, step on, miss deadlines, go. Pure.

Place: under member_group.py. A kind adds its assignment and what it stores in a subclass, and looks members up by
more in a subclass of MemberRoster. Times are seconds of the clock's monotonic().
    group epoch    rises when members, subscriptions or topics change
    target epoch   the group epoch that the target assignment was made for
    member epoch   the target epoch that the member was brought to; it shows it in every request
Invariant: epochs never go back. An instance id belongs to one member. A member that does not act in time is removed;
held_groups.py wakes the group at the next deadline. Every change is marked in the outbox, so no answer precedes its
save.
Source: KIP-848 (group epoch, assignment epoch), Kafka's GroupMetadataManager.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from typing import Any, Generic, TypeVar

from kio.schema.errors import ErrorCode

from headrace.agent.groups.group_values import GroupEffect, MemberRef, SavedState
from headrace.agent.groups.members.member import GroupMember
from headrace.agent.groups.outbox import Outbox
from headrace.metastore.api.groups import GroupRecord


class MemberDeadlines:
    """The deadlines of members, by member id. Heartbeats postpone them without a call."""

    def __init__(self) -> None:
        self._sessions: dict[str, float] = {}
        """Member id -> when it is given up unless it is learned of."""
        self._overdue: dict[str, float] = {}
        """Member id -> when it is given up unless it does what it was asked to: give partitions up, join or sync."""
        self._wake_at = math.inf
        """No deadline is earlier than this."""

    def heard_of(self, now: float, member_id: str, session_timeout: float) -> None:
        """Its session starts again."""
        self._sessions[member_id] = now + session_timeout
        self._wake_at = min(self._wake_at, now + session_timeout)

    def expect(self, now: float, member_id: str, rebalance_timeout: float) -> None:
        """It has so long, from now on, to do what it was asked to."""
        self._overdue[member_id] = now + rebalance_timeout
        self._wake_at = min(self._wake_at, now + rebalance_timeout)

    def expect_unless_expected(self, now: float, member_id: str, rebalance_timeout: float) -> None:
        """The same, unless it was asked before: that deadline holds."""
        if member_id not in self._overdue:
            self.expect(now, member_id, rebalance_timeout)

    def met(self, member_id: str) -> None:
        """It did what it was asked to; its session still runs."""
        self._overdue.pop(member_id, None)

    def forget(self, member_id: str) -> None:
        """It is no member any more."""
        self._sessions.pop(member_id, None)
        self._overdue.pop(member_id, None)

    def late(self, now: float) -> set[str]:
        """Ids of the members to be given up; the next deadline is known afterwards."""
        late = {m for deadlines in (self._sessions, self._overdue) for m, at in deadlines.items() if at <= now}
        left = (at for deadlines in (self._sessions, self._overdue) for at in deadlines.values() if at > now)
        self._wake_at = min(left, default=math.inf)
        return late

    @property
    def next(self) -> float | None:
        """No deadline is earlier; None while there is none."""
        return self._wake_at if self._sessions or self._overdue else None


class GroupEpochs:
    """Both epochs of one group. The target is made again only while its epoch is behind."""

    def __init__(self, on_rise: Callable[[], None] = lambda: None) -> None:
        """`on_rise` is called with each new group epoch."""
        self._on_rise = on_rise
        self.group_epoch = 0
        self.lowest = 0
        """The least of the group epochs that begin from now on."""
        self.epoch = 0
        """The target's."""
        self.judged_by: object = None
        """The topics by which the group was judged last; None if it was not since it was loaded."""

    def raise_epoch(self) -> None:
        """Members, subscriptions or topics changed: the target has to be made again."""
        self.group_epoch = max(self.group_epoch + 1, self.lowest)
        self._on_rise()

    @property
    def is_made(self) -> bool:
        """Whether the target is of the group epoch."""
        return self.epoch == self.group_epoch

    def is_judged_by(self, topics: object) -> bool:
        """Return whether these are the topics that the group was judged by last: the same object."""
        return self.judged_by is topics

    def rename(self, member_id: str, successor_id: str) -> None:
        """Give the part of a static member to its new member id. Nothing to do here: a subclass has the parts."""

    def forget(self, member_id: str) -> None:
        """Make a new target necessary: a member left, so its part is free."""
        self.raise_epoch()


M = TypeVar("M", bound=GroupMember[Any])


class MemberRoster(Collection[M]):
    """Members by id, in the order they joined."""

    def __init__(self) -> None:
        self._members: dict[str, M] = {}
        self._static_ids: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[M]:
        return iter(self._members.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> M | None:
        """The member of that id."""
        return self._members.get(member_id)

    def static_member(self, instance_id: str) -> M | None:
        """The member that holds the instance id."""
        member_id = self._static_ids.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def put(self, member: M) -> None:
        """Add the member, or replace what was known of it."""
        before = self._members.get(member.member_id)
        if before is not None:
            self._forget(before)
        self._members[member.member_id] = member
        self._note(member)

    def remove(self, member: M) -> None:
        """It holds nothing any more."""
        self._forget(member)
        del self._members[member.member_id]

    def _note(self, member: M) -> None:
        """Make the member known by what it has, besides its id."""
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.member_id

    def _forget(self, member: M) -> None:
        """The inverse of `_note`."""
        if member.instance_id is not None:
            del self._static_ids[member.instance_id]


class GroupMembership(ABC, Generic[M]):
    """Roster, epochs, deadlines and outbox of one group."""

    roster: MemberRoster[M]
    target: GroupEpochs

    def __init__(self, size_max: Callable[[], int]) -> None:
        """`size_max`: as configured now."""
        self.is_dead = False
        self.state_name = "Empty"
        """Kafka's name of the state. Kept, not looked up: metrics read it from another thread."""
        self._size_max = size_max
        self.outbox = Outbox(self.snapshot)
        self.deadlines = MemberDeadlines()

    # -- what differs

    @abstractmethod
    def snapshot(self) -> SavedState:
        """The group as it is to be stored now."""

    @abstractmethod
    def restore(self, now: float, record: GroupRecord) -> None:
        """Continue where the last coordinator was: the same epochs and assignments, new sessions."""

    @abstractmethod
    def _session_timeout(self, member: M) -> float:
        """Seconds, as configured now."""

    @abstractmethod
    def _state(self) -> str:
        """Kafka's name of the state, of a group that is not dead."""

    # -- members

    def heard_of(self, now: float, member: M) -> None:
        """Its session starts again."""
        self.deadlines.heard_of(now, member.member_id, self._session_timeout(member))

    def put(self, member: M) -> None:
        """Add the member, or replace what was known of it."""
        self.roster.put(member)
        self.outbox.changed()

    def adopt(self, now: float, member: M) -> None:
        """A member that is there already, as the group is restored: with a new session."""
        self.roster.put(member)
        self.heard_of(now, member)

    def take_over(self, static: M, member_id: str) -> M:
        """A static member came back, maybe as another process: its instance's share is its own again."""
        returned = static.back_as(member_id)
        if member_id != static.member_id:
            self.roster.remove(static)
            self.target.rename(static.member_id, member_id)
            self.deadlines.forget(static.member_id)
        self.put(returned)
        return returned

    def go_away(self, member: M) -> None:
        """A static member left and may come back within its session."""
        self.put(member.gone_for_a_while())
        self.deadlines.met(member.member_id)

    def remove(self, member: M) -> None:
        """It left or was given up; what it held is free at once."""
        self.roster.remove(member)
        self.target.forget(member.member_id)
        self.deadlines.forget(member.member_id)
        self.outbox.changed()

    def remove_late(self, now: float) -> list[M]:
        """Give up the members that missed a deadline; return them."""
        late = self.deadlines.late(now)
        removed = [member for member in self.roster if member.member_id in late]
        for member in removed:
            self.remove(member)
        return removed

    def named(self, ref: MemberRef) -> M | ErrorCode:
        """The member that a request names, or why it is refused."""
        if self.is_dead:
            return ErrorCode.not_coordinator
        if ref.instance_id is not None:
            static = self.roster.static_member(ref.instance_id)
            if static is None:
                return ErrorCode.unknown_member_id
            return static if static.member_id == ref.member_id else ErrorCode.fenced_instance_id
        return self.roster.get(ref.member_id) or ErrorCode.unknown_member_id

    def is_full(self) -> bool:
        """Return whether no member more is let in."""
        return len(self.roster) >= self._size_max()

    def subscribed_topics(self) -> frozenset[str]:
        """Names of the topics that the members consume, whether or not they exist."""
        return frozenset[str]().union(*(member.topic_names for member in self.roster))

    # -- effects

    def drain(self) -> list[GroupEffect]:
        """Return what is to be done now."""
        if self.outbox.has_news and not self.is_dead:
            self.state_name = self._state()
        return self.outbox.drain()

    def close(self, code: ErrorCode) -> list[GroupEffect]:
        """Refuse with `code` what waits; store nothing any more."""
        self.is_dead, self.state_name = True, "Dead"
        self.outbox.refuse_all(code)
        self.outbox.give_up()
        return self.drain()
