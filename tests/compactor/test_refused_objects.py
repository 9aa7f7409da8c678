"""Objects that the store does not serve block no other: the job loop, planner and all, on a real Postgres.

Fault model: reads of some objects, or of all, are refused finally (S3's 403) or end as if the store could
not be reached; puts are refused. Time is the metastore's, moved from one round of the loop to the next.
"""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.compactor.compact import PATIENT_ATTEMPTS, CompactionMetrics
from headrace.compactor.planner import Planner, PolicyLimits
from headrace.jobs.kinds import COMPACT, PLAN_COMPACTION
from headrace.jobs.runner import JobMetrics, JobRunner, RunnerTerms
from headrace.storage.errors import HeadraceError, InvalidError, UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange, ObjectInfo, StoreDecorator
from headrace.storage.supervision import Supervisor
from tests.compactor.world import CompactionWorld
from tests.metastore.sessions import move_time, rows, session
from tests.storage.batches import plain_batch

DAY = 24 * 3600
REFUSED = InvalidError("store refused: status=403 code=InvalidObjectState")
UNREACHABLE = UnavailableError("store unreachable")


class Refusing(StoreDecorator):
    """`reads` by key, None for every key, "puts": what they end with. Counts the reads."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.errors: dict[str | None, HeadraceError] = {}
        self.gets = 0

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        self.gets += 1
        self._judge(key)
        return await super().get(key, byte_range)

    async def head(self, key: str) -> ObjectInfo:
        self._judge(key)
        return await super().head(key)

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        if "puts" in self.errors:
            raise self.errors["puts"]
        return await super().put(key, body, if_absent=if_absent)

    def _judge(self, key: str) -> None:
        error = self.errors.get(key) or self.errors.get(None)
        if error is not None:
            raise error


class Loop:
    """The job loop of one worker, with the planner's turn before each round."""

    def __init__(self, world: CompactionWorld) -> None:
        self.world, self.store, self.seconds = world, Refusing(world.store), 0
        limits = PolicyLimits(min_age_ms=0, fan_in=4, job_files=40)
        planner = Planner(world.postgres, limits, CompactionMetrics(CollectorRegistry()))
        handlers = {PLAN_COMPACTION.name: planner.handle, COMPACT.name: world.compactor(store=self.store).handle}
        metrics = JobMetrics(world.clock, CollectorRegistry())
        self.runner = JobRunner(
            world.postgres.jobs, handlers, RunnerTerms("w"), world.clock, world.rng, metrics, Supervisor(world.clock)
        )

    async def rounds(self, count: int, *, every_seconds: int = 15) -> None:
        for _ in range(count):
            await self.world.postgres.jobs.enqueue_jobs([PLAN_COMPACTION.once()])
            await self.runner.drain()
            await self.wait(every_seconds)

    async def wait(self, seconds: int) -> None:
        self.seconds += seconds
        async with session(self.world.url) as raw:
            await move_time(raw, self.seconds)

    async def marked(self) -> set[Any]:
        async with session(self.world.url) as raw:
            return {file_id for (file_id,) in await rows(raw, "SELECT DISTINCT file_id FROM damaged_extents")}


async def fill(world: CompactionWorld, files: int = 8) -> int:
    (key,) = await world.topic("t", 1)
    for number in range(files):
        await world.commit((key, plain_batch(2, b"%d" % number)))
    return key


async def test_one_object_that_is_refused_holds_up_no_neighbour(world: CompactionWorld) -> None:
    """Archived by a lifecycle rule. Its neighbours are merged around it, and it is not requested again for a day."""
    key = await fill(world, files=40)
    before = await world.records(key)
    refused = (await world.extents(key))[20].file_id  # of files of one millisecond, the ids say no order
    loop = Loop(world)
    loop.store.errors[object_key(refused)] = REFUSED

    await loop.rounds(4)

    assert await world.live_files(level=0) == [refused]
    assert [(e.base_offset, e.last_offset) for e in await world.extents(key)] == [(0, 39), (40, 41), (42, 79)]
    assert loop.store.gets == 40
    assert await loop.marked() == {refused}
    await world.check_accounts()

    loop.store.errors.clear()
    for _ in range(3):
        await world.commit((key, plain_batch(1)))
    await loop.wait(DAY)
    await loop.rounds(1)
    assert refused not in await world.live_files()
    assert (await world.records(key))[:80] == before


async def test_one_object_that_is_never_served_is_waited_for_and_then_left(world: CompactionWorld) -> None:
    key = await fill(world)
    before, files = await world.records(key), await world.live_files()
    loop = Loop(world)
    loop.store.errors[object_key(files[3])] = UNREACHABLE

    await loop.rounds(PATIENT_ATTEMPTS, every_seconds=400)
    assert await world.live_files(level=0) == files, "it may come back"
    assert not await loop.marked()
    await loop.rounds(4, every_seconds=400)

    assert await world.live_files(level=0) == [files[3]]
    assert await loop.marked() == {files[3]}
    assert loop.store.gets <= (PATIENT_ATTEMPTS + 1) * len(files)
    del loop.store.errors[object_key(files[3])]
    assert await world.records(key) == before


async def test_one_that_comes_back_in_time_is_merged_with_the_others(world: CompactionWorld) -> None:
    key = await fill(world)
    before, files = await world.records(key), await world.live_files()
    loop = Loop(world)
    loop.store.errors[object_key(files[3])] = UNREACHABLE
    await loop.rounds(2, every_seconds=400)
    loop.store.errors.clear()
    await loop.rounds(1)
    assert not await world.live_files(level=0)
    assert not await loop.marked()
    assert await world.records(key) == before


@pytest.mark.parametrize("error", [REFUSED, UNREACHABLE], ids=["refused", "unreachable"])
async def test_a_store_that_serves_nothing_is_no_files_fault(world: CompactionWorld, error: HeadraceError) -> None:
    """Keys were taken away, or the network is. The job waits, minutes in the end; what it would merge is not marked."""
    await fill(world)
    files = await world.live_files()
    loop = Loop(world)
    loop.store.errors[None] = error
    await loop.rounds(60, every_seconds=60)
    assert await world.live_files(level=0) == files
    assert not await loop.marked()
    assert loop.store.gets <= 80 * len(files), "once a minute or so: given up after ten attempts, it is planned again"
    loop.store.errors.clear()
    await loop.rounds(2, every_seconds=600)
    assert not await world.live_files(level=0)


async def test_a_job_of_refused_objects_alone_ends(world: CompactionWorld) -> None:
    """The store answers for other objects: in the end these are marked, and the job's place is free."""
    await fill(world)
    files = await world.live_files()
    loop = Loop(world)
    loop.store.errors = {object_key(file_id): REFUSED for file_id in files}
    await loop.rounds(PATIENT_ATTEMPTS, every_seconds=400)
    assert not await loop.marked()
    await loop.rounds(3, every_seconds=400)
    assert await loop.marked() == set(files)
    assert loop.store.gets == (PATIENT_ATTEMPTS + 1) * len(files)
    assert await world.postgres.compaction.unfinished_payloads(COMPACT.name) == [[]]


async def test_a_store_that_takes_no_merged_file_is_asked_later(world: CompactionWorld) -> None:
    await fill(world)
    loop = Loop(world)
    loop.store.errors["puts"] = REFUSED
    await loop.rounds(40)
    assert loop.store.gets <= 20 * 8, "ten minutes, under twenty attempts: pauses are random up to five minutes"
    async with session(world.url) as raw:
        assert await rows(raw, "SELECT last_error FROM jobs WHERE kind = 'compact' AND last_error LIKE '%%403%%'")
    del loop.store.errors["puts"]
    await loop.rounds(2, every_seconds=600)
    assert not await world.live_files(level=0)
