"""The members of a group and what becomes of them: members come, step on, and go. Pure.

Place: under member_group.py. A kind adds its assignment and what it stores in a subclass.
Invariant: a member that does not act in time is removed; held_groups.py wakes the group at the next deadline. Every
change is marked in the outbox, so no answer precedes its save.
Source: KIP-848, Kafka's GroupMetadataManager.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from kio.schema.errors import ErrorCode

from headrace.agent.groups.group_values import GroupEffect, MemberRef, SavedState
from headrace.agent.groups.members.deadlines import MemberDeadlines
from headrace.agent.groups.members.epochs import GroupEpochs
from headrace.agent.groups.members.member import GroupMember
from headrace.agent.groups.members.roster import MemberRoster
from headrace.agent.groups.outbox import Outbox
from headrace.metastore.api.groups import GroupRecord

M = TypeVar("M", bound=GroupMember[Any])


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
