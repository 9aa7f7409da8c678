"""The clock of tests: time passes only while nothing works."""

from __future__ import annotations

import asyncio
import threading

from tests.manual_clock import ManualClock


async def test_no_time_passes_while_a_thread_works() -> None:
    """Wait in a thread: on a busy machine an hour passed before the thread had its turn, and the test failed."""
    clock, go_on = ManualClock(), threading.Event()

    async def ticks() -> None:
        while True:
            await clock.sleep(1)

    async def work() -> float:
        await asyncio.to_thread(go_on.wait, 600)
        return clock.monotonic()

    began, ticking = clock.monotonic(), asyncio.create_task(ticks())
    asyncio.get_running_loop().call_later(0.05, go_on.set)
    assert await clock.run(work()) == began
    assert await clock.run(clock.sleep(5), 60) is None
    assert clock.monotonic() == began + 5
    ticking.cancel()
