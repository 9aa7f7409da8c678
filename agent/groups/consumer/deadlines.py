"""Deadlines of a consumer group's members: for heartbeats, and for what they were asked to do. Pure.

Place: under membership.py and classic_members.py; held_groups.py wakes the group at `next`.
Invariant: `next` is a lower bound: a heartbeat postpones a deadline without a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from headrace.agent.groups.consumer.member import ConsumerMember
from headrace.agent.groups.consumer.rules import GroupTimes


class MemberDeadlines:
    """Times are seconds of the clock's monotonic()."""

    def __init__(self, times: Callable[[], GroupTimes]) -> None:
        """`times` are the group's own, as configured now."""
        self._times = times
        self._sessions: dict[str, float] = {}
        """Member id -> when it is given up unless it is learned of."""
        self._overdue: dict[str, float] = {}
        """Member id -> when it is given up unless it does what it was asked to: give partitions up, join or sync."""
        self._wake_at = math.inf
        """No deadline is earlier than this."""

    def heard_of(self, now: float, member: ConsumerMember) -> None:
        """Its session starts again."""
        timeout = self._times().session_timeout if member.classic is None else member.classic.session_timeout
        self._sessions[member.member_id] = now + timeout
        self._wake_at = min(self._wake_at, now + timeout)

    def expect(self, now: float, member: ConsumerMember) -> None:
        """It has its rebalance timeout, from now on, to do what it was asked to."""
        self._overdue[member.member_id] = now + member.rebalance_timeout
        self._wake_at = min(self._wake_at, now + member.rebalance_timeout)

    def expect_unless_expected(self, now: float, member: ConsumerMember) -> None:
        """The same, unless it was asked before: that deadline holds."""
        if member.member_id not in self._overdue:
            self.expect(now, member)

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
