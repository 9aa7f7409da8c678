"""When the members of a group are given up: sessions, and what members were asked to do. Pure.

Place: under membership.py; held_groups.py wakes the group at the next deadline.
Times are seconds of the clock's monotonic().
"""

from __future__ import annotations

import math


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
