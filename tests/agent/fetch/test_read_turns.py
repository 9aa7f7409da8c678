"""Replays give way to uploads: how many ranges are read at a time, and how long a PUT takes meanwhile."""

from __future__ import annotations

import asyncio
import random

import pytest

from headrace.agent.fetch.files.read import READS_BESIDE_UPLOADS, READS_MAX, ReadTurns
from headrace.agent.produce.upload import UPLOADS_SPAN_S
from tests.manual_clock import ManualClock
from tests.patch import Patch

LATENCY_S = 0.045
LINK_BYTES_PER_S = 400_000_000
RANGE_BYTES = 4 * 1024 * 1024
FILE_BYTES = 1024 * 1024
STEP_S = 0.003


class Link:
    """Requests that wait for LATENCY_S, then share the bandwidth of a link equally."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.transfers = 0

    async def transfer(self, size: float, latency_s: float) -> None:
        await self._clock.sleep(latency_s)
        self.transfers += 1
        try:
            while size > 0:
                await self._clock.sleep(STEP_S)
                size -= LINK_BYTES_PER_S * STEP_S / self.transfers
        finally:
            self.transfers -= 1


async def _put_seconds(readers: int, puts: int = 20) -> tuple[list[float], int]:
    """The durations of ten PUTs a second while so many readers read one range after the other, and what they read."""
    clock, uploads, read = ManualClock(), 0, 0
    link = Link(clock)
    turns = ReadTurns(lambda: uploads > 0 or clock.monotonic() - ended_at < UPLOADS_SPAN_S)
    rng, ended_at = random.Random(1), clock.monotonic()

    async def replay() -> None:
        nonlocal read
        while True:
            async with turns:
                await link.transfer(RANGE_BYTES, LATENCY_S * rng.uniform(0.2, 0.5))
                read += 1

    replays = [asyncio.create_task(replay()) for _ in range(readers)]
    found = []

    async def produce() -> None:
        nonlocal uploads, ended_at
        for _ in range(puts):
            started = clock.monotonic()
            uploads += 1
            await link.transfer(FILE_BYTES, LATENCY_S)
            uploads -= 1
            ended_at = clock.monotonic()
            found.append(clock.monotonic() - started)
            await clock.sleep(max(0.0, 0.1 - found[-1]))

    await clock.run(produce())
    for task in replays:
        task.cancel()
    await asyncio.gather(*replays, return_exceptions=True)
    return found, read


async def test_a_put_takes_at_most_a_third_longer_during_replays() -> None:
    alone, _ = await _put_seconds(0)
    beside, read = await _put_seconds(20)
    assert max(beside) <= 1.3 * max(alone), "a PUT waits for replays"
    assert read > 50, "and replays go on"


async def test_without_the_priority_a_put_would_wait(patch: Patch) -> None:
    """A planted bug: uploads are not looked at."""
    patch.replace(ReadTurns, "_limit", lambda self: self._most)
    with pytest.raises(AssertionError, match="a PUT waits for replays"):
        await test_a_put_takes_at_most_a_third_longer_during_replays()


class Reads:
    """Reads that end when the test says so."""

    def __init__(self) -> None:
        self.is_uploading = False
        self.turns = ReadTurns(lambda: self.is_uploading)
        self.order: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._ends: dict[int, asyncio.Event] = {}

    async def begin(self, count: int) -> None:
        for _ in range(count):
            self.tasks.append(asyncio.create_task(self._read(len(self.tasks))))
        await _settle()

    async def end(self, *numbers: int) -> None:
        for number in numbers:
            self._ends[number].set()
        await _settle()

    async def _read(self, number: int) -> None:
        async with self.turns:
            self.order.append(number)
            self._ends[number] = asyncio.Event()
            await self._ends[number].wait()


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_reads_begin_in_order_up_to_the_limit() -> None:
    reads = Reads()
    await reads.begin(READS_MAX + 3)
    assert reads.order == list(range(READS_MAX))
    await reads.end(3, 5)
    assert reads.order[READS_MAX:] == [READS_MAX, READS_MAX + 1]
    reads.is_uploading = True
    await reads.end(0)
    assert reads.turns.running == READS_MAX - 1, "none begins while an upload is in progress"
    await reads.end(*range(1, 3), *range(6, READS_MAX))
    assert reads.turns.running == READS_BESIDE_UPLOADS
    assert reads.order[-1] == READS_MAX + 2
    await reads.end(4, READS_MAX, READS_MAX + 1, READS_MAX + 2)
    assert reads.turns.running == 0


async def test_replays_never_stop_while_uploads_go_on() -> None:
    reads = Reads()
    reads.is_uploading = True
    await reads.begin(40)
    for number in range(40):
        assert reads.turns.running == min(READS_BESIDE_UPLOADS, 40 - number)
        await reads.end(number)
    assert reads.order == list(range(40))


async def test_a_cancelled_read_gives_its_turn_on() -> None:
    reads = Reads()
    await reads.begin(READS_MAX + 4)
    reads.tasks[READS_MAX].cancel()  # it waits
    reads.tasks[0].cancel()  # it reads
    await _settle()
    assert reads.order[READS_MAX:] == [READS_MAX + 1]
    reads.order.clear()
    await reads.end(1)
    reads.tasks[READS_MAX + 2].cancel()
    await _settle()
    assert reads.turns.running == READS_MAX
    for task in reads.tasks:
        task.cancel()
    await _settle()
    assert reads.turns.running == 0


async def test_a_read_that_is_cancelled_as_its_turn_comes_gives_it_on() -> None:
    turns = ReadTurns(lambda: False, most=1)
    async with turns:
        waiting = asyncio.create_task(turns.__aenter__())
        behind = asyncio.create_task(turns.__aenter__())
        await _settle()
    waiting.cancel()
    await _settle()
    assert waiting.cancelled()
    assert behind.done()
    assert turns.running == 1
