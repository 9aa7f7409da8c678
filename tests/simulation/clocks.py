"""Clocks that disagree: each process has its own rate, its own start, and a wall clock that jumps.

Fault model: `monotonic` runs up to a few percent fast or slow and starts anywhere, but never goes
back; `wall_ms` is skewed and jumps either way. All of them follow the loop's virtual time.
"""

from __future__ import annotations

import asyncio

from tests.simulation.loop import VirtualLoop

EPOCH_MS = 1_700_000_000_000
"""What a wall clock without skew shows when a schedule begins."""
CLOCK_RATES = (0.98, 1.02)
"""Clock rates of the processes: the slowest and the fastest."""


class SimulatedClock:
    """Implements storage.clock.Clock."""

    def __init__(self, loop: VirtualLoop, *, rate: float = 1.0, start: float = 0.0, wall_skew_ms: int = 0) -> None:
        self._loop = loop
        self._rate = rate
        self._start = start
        self._wall_skew_ms = wall_skew_ms

    def monotonic(self) -> float:
        return self._start + self._loop.time() * self._rate

    def wall_ms(self) -> int:
        return EPOCH_MS + self._wall_skew_ms + int(self._loop.time() * 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0) / self._rate)

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forward, or back when negative."""
        self._wall_skew_ms += milliseconds
