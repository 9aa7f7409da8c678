"""What the virtual loop promises to the simulation that runs on it."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from tests.simulation.clocks import SimulatedClock
from tests.simulation.loop import OWNER, SpinningError, VirtualLoop


def make_loop() -> VirtualLoop:
    return VirtualLoop(lambda message: pytest.fail(message), refuse)


async def refuse(protocol: asyncio.BufferedProtocol, port: int) -> asyncio.Transport:
    await asyncio.sleep(0.5)
    raise ConnectionRefusedError(f"no listener at port {port}")


def owned_by(number: int) -> contextvars.Context:
    context = contextvars.copy_context()
    context.run(OWNER.set, number)
    return context


def test_sleeping_takes_virtual_time_only() -> None:
    loop = make_loop()

    async def main() -> list[float]:
        woken = []
        for seconds in (3600.0, 0.25):
            await asyncio.sleep(seconds)
            woken.append(loop.time())
        return woken

    assert loop.run(main()) == [3600.0, 3600.25]


def test_a_clock_may_run_fast_and_jump_but_never_goes_back() -> None:
    loop = make_loop()
    clock = SimulatedClock(loop, rate=2.0, start=100.0, wall_skew_ms=500)

    async def main() -> tuple[float, float]:
        wall = clock.wall_ms()
        await clock.sleep(4.0)
        clock.jump(-60_000)
        assert clock.wall_ms() - wall == 2_000 - 60_000
        return loop.time(), clock.monotonic()

    assert loop.run(main()) == (2.0, 104.0)


def test_a_frozen_process_continues_where_it_stopped() -> None:
    loop = make_loop()
    seen: list[float] = []

    async def work() -> None:
        while True:
            await asyncio.sleep(1.0)
            seen.append(loop.time())

    async def main() -> None:
        loop.create_task(work(), context=owned_by(7))
        await asyncio.sleep(1.5)
        loop.freeze(7)
        await asyncio.sleep(3.0)
        loop.thaw(7)
        await asyncio.sleep(1.2)

    loop.run(main())
    assert seen == [1.0, 4.5, 5.5]


def test_a_killed_process_never_runs_again_while_the_schedule_lasts() -> None:
    loop = make_loop()
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1.0)
            seen.append("worked")
        finally:
            seen.append("tidied up")

    async def main() -> list[str]:
        loop.create_task(work(), context=owned_by(7))
        await asyncio.sleep(0.5)
        loop.kill(7)
        loop.thaw(7)
        await asyncio.sleep(10.0)
        return list(seen)

    assert loop.run(main()) == []
    assert seen == ["tidied up"], "buried after the schedule, so that no coroutine is left to the garbage collector"


def test_work_in_threads_ends_a_little_later() -> None:
    loop = make_loop()

    async def main() -> float:
        assert await asyncio.to_thread(sum, (1, 2)) == 3
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
        return loop.time()

    assert 0 < loop.run(main()) < 0.01


def test_a_schedule_that_cannot_end_is_an_error() -> None:
    async def wait_for_nothing() -> None:
        await asyncio.get_running_loop().create_future()

    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    for endless in (wait_for_nothing, spin):
        with pytest.raises(SpinningError):
            make_loop().run(endless())


def test_dialing_connects_to_what_the_world_has_at_the_port() -> None:
    loop = make_loop()

    async def dial() -> float:
        with pytest.raises(ConnectionRefusedError, match="port 7"):
            await loop.create_connection(asyncio.BufferedProtocol, "agent", 7)
        return loop.time()

    assert loop.run(dial()) == 0.5
