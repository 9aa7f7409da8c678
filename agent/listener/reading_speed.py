"""How fast one connection reads its replies: how many bytes of records it gets at most, and whether it is too slow.

Place: part of a connection's replies (replies.py); reply_memory.py asks it before records are read.
Invariant: a connection gets at most what it reads in ANSWER_SECONDS at the speed of its last answers, and FIRST_BYTES
while nothing is known; a connection that reads everything at once soon gets any size. It is too slow only while others
wait: if, over their waiting time, it has read LEAST_BYTES_PER_SECOND less than it should for PATIENCE_SECONDS. So a
slow client gets small answers before it is closed, and one byte now and then keeps no memory.
"""

from __future__ import annotations

FIRST_BYTES = 1024 * 1024
LEAST_BYTES = 64 * 1024
"""Records of this size are given to the slowest client."""
ANSWER_SECONDS = 4.0
"""How long a client should take for an answer."""
QUICK_SECONDS = 1.0
"""A client that took no longer for an answer gets GROWTH times as many bytes."""
GROWTH = 4
LEAST_BYTES_PER_SECOND = 64 * 1024
"""What a client has to read while others wait for memory,"""
PATIENCE_SECONDS = 5.0
"""Longest time in which it may read nothing."""
JUDGED_SECONDS = 1.0
"""Longest time between two looks that counts: a connection is looked at only while others wait."""


class ReadingSpeed:
    """The reading speed of one connection. Times are of Clock.monotonic()."""

    __slots__ = ("_judged_at", "_patience", "_taken_bytes", "most_bytes")

    def __init__(self) -> None:
        self.most_bytes = FIRST_BYTES
        """Most bytes of records of the next answer, but for a first batch that is larger."""
        self._patience = PATIENCE_SECONDS
        self._judged_at = 0.0
        self._taken_bytes: int | None = None

    def read(self, size_bytes: int, seconds: float) -> None:
        """An answer of this size was read in so long."""
        if seconds > QUICK_SECONDS:
            self.most_bytes = max(LEAST_BYTES, int(size_bytes / seconds * ANSWER_SECONDS))
        elif size_bytes * GROWTH > self.most_bytes:
            self.most_bytes = size_bytes * GROWTH

    def begin(self, now: float) -> None:
        """There are replies to read, after there were none."""
        self._patience, self._judged_at, self._taken_bytes = PATIENCE_SECONDS, now, None

    def is_too_slow(self, now: float, taken_bytes: int) -> bool:
        """Look at a connection with unread replies while others wait. `taken_bytes`: read since it began."""
        waited = min(now - self._judged_at, JUDGED_SECONDS)
        gained = 0.0 if self._taken_bytes is None else (taken_bytes - self._taken_bytes) / LEAST_BYTES_PER_SECOND
        self._judged_at, self._taken_bytes = now, taken_bytes
        self._patience = min(PATIENCE_SECONDS, self._patience - waited + gained)
        return self._patience < 0
