"""Counts of the last minute, for decisions and metrics that follow the present load.

Place: used by the budget of early flushes (flush_budget.py) and its metrics. Pure: times are parameters.
Invariant: what is counted is remembered for SPAN_S to SPAN_S + SLOT_S, in a fixed number of slots.
"""

from __future__ import annotations

from collections import deque

SPAN_S = 60
SLOT_S = 10
"""Counts are forgotten a slot at a time."""


class RecentCounts:
    """Counts of several kinds of events. Times on Clock.monotonic(), in seconds."""

    def __init__(self, kinds: int = 1) -> None:
        self._kinds = kinds
        self._slots: deque[tuple[int, list[int]]] = deque()
        self._totals = [0] * kinds

    def add(self, kind: int, now: float) -> None:
        """Count an event."""
        slot = int(now // SLOT_S)
        self._forget_before(slot)
        if not self._slots or self._slots[-1][0] != slot:
            self._slots.append((slot, [0] * self._kinds))
        self._slots[-1][1][kind] += 1
        self._totals[kind] += 1

    def totals(self, now: float) -> list[int]:
        """Return the counts by kind."""
        self._forget_before(int(now // SLOT_S))
        return list(self._totals)

    def per_second(self, now: float) -> float:
        """Return the rate of all kinds together."""
        return sum(self.totals(now)) / (SPAN_S + now % SLOT_S)

    def _forget_before(self, slot: int) -> None:
        while self._slots and self._slots[0][0] < slot - SPAN_S // SLOT_S:
            for kind, count in enumerate(self._slots.popleft()[1]):
                self._totals[kind] -= count
