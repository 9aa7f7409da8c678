"""Time as a parameter, so that tests need not sleep and failures can be replayed from a seed.

Place: passed into every component that waits, expires or picks at random.
Invariant: only this file reads the system clock; `monotonic` orders events inside one process, `wall_ms` is only for
people and for record timestamps. Leases and file ids are judged by the database's time (metastore), never by this
clock.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """The time functions that a component can use."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`; with 0, after at least one turn of the event loop."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
