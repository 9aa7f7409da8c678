"""Decide when a process leaves its connections to Postgres, because another server is at the address by now.

Place: pure policy under keeper.py, asked after each check of the life.
Invariant: connections are left at once when the verdict changes away from CURRENT, or another server becomes CURRENT,
and again while the verdict stays away, but never sooner than FIRST_WAIT_SECONDS after the last time. So each pool
replaces all its connections six times a minute at most, also if the address points to the wrong server for days, or to
two servers in turn.
"""

from __future__ import annotations

import math
import random

from headrace.metastore.api.life import Server
from headrace.metastore.life.verdict import LifeVerdict

FIRST_WAIT_SECONDS = 10.0
MOST_WAIT_SECONDS = 60.0
JITTER = 0.5
"""Share of a wait that is added at most, so that the processes of a cluster do not connect at the same time."""


class LeavePolicy:
    """Policy of one process for leaving connections. Times are seconds of its monotonic clock."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._server: Server | None = None
        """That was CURRENT last; None: none was yet."""
        self._is_away = False
        self._is_due = False
        """What is due stays due, also if the next check reaches the right server by another connection."""
        self._wait_seconds = FIRST_WAIT_SECONDS
        self._not_before = -math.inf

    def leaves(self, verdict: LifeVerdict, server: Server, now: float) -> bool:
        """Return whether the process leaves its connections now, after this verdict on this server."""
        was_away, self._is_away = self._is_away, verdict is not LifeVerdict.CURRENT
        if self._is_away:
            self._is_due = True
        else:
            self._is_due |= not was_away and self._server not in (None, server)
            self._server = server
        if not self._is_due or now < self._not_before:
            return False
        if now >= self._not_before + MOST_WAIT_SECONDS:
            self._wait_seconds = FIRST_WAIT_SECONDS
        self._not_before = now + self._wait_seconds * (1 + JITTER * self._rng.random())
        self._wait_seconds = min(2 * self._wait_seconds, MOST_WAIT_SECONDS)
        self._is_due = False
        return True
