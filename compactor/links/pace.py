"""How fast a share of a link reads: its part of `link.max.bytes.per.second`.

Place: asked by copying.py before each fetch. Pure; times are the clock's monotonic seconds.
Invariant: over any time the bytes read are at most the rate times it, and one round of answers.
"""

from __future__ import annotations


class Pace:
    """`bytes_per_s` 0: no limit."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def may_go(self, now: float) -> bool:
        """Return whether more may be read."""
        return now >= self._free_at

    def took(self, size_bytes: int, now: float) -> None:
        """Count what was read."""
        if self._bytes_per_s:
            self._free_at = max(self._free_at, now) + size_bytes / self._bytes_per_s
