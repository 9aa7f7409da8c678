"""Time as a parameter, so that tests need not sleep and failures can be replayed from a seed.

Place: passed into every component that waits, expires or picks at random.
Invariant: only this file reads the system clock; `monotonic` orders events inside one process, `wall_ms` is only for
people and for record timestamps. Leases and file ids are judged by the database's time (metastore), never by this
clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


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


async def within(
    clock: Clock, seconds: float, work: Awaitable[T], unused: Callable[[T], object] = lambda result: None
) -> T:
    """Return the result of `work`, or raise its error; TimeoutError after `seconds`, with `work` cancelled.

    `unused` gets a result that comes after the caller has stopped waiting, for example to close a connection. An
    error that comes then is dropped.
    """
    taken = False

    def settle(done: asyncio.Future[T]) -> None:
        if not done.cancelled() and done.exception() is None and not taken:
            unused(done.result())

    working = asyncio.ensure_future(work)
    timer = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((working, timer), return_when=asyncio.FIRST_COMPLETED)
        taken = working.done()
    finally:
        timer.cancel()
        working.cancel()
        working.add_done_callback(settle)
    if not taken:
        raise TimeoutError
    return working.result()
