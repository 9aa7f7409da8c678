"""Time and randomness as parameters, so that tests need no sleeping and failures replay from a seed.

Place: passed into every component that waits, expires or picks at random.
Invariant: nothing outside this file reads the system clock to make a decision; `monotonic` orders
things inside one process, `wall_ms` is only for people and for record timestamps. The time that
leases and file ids are judged by is the database's (metastore), never this one's.
If the process dies here nothing is lost: no state.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What a component may know of time."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""

    async def sleep(self, seconds: float) -> None:
        """Return once `seconds` have passed; at least one turn of the loop when it is 0."""


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
