"""Cleaning by key and merges of files, when both have work all the time: neither waits without limit."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.compactor import planner as planner_module
from headrace.compactor.cleaning.job import large_job
from headrace.compactor.cleaning.planner import RESERVED_MS
from headrace.compactor.cleaning.policy import CleaningTask, decode_cleaning
from headrace.compactor.compact import CompactionMetrics
from headrace.compactor.plan import CompactionJob, decode_job, encode
from headrace.compactor.planner import Planner, PolicyLimits
from headrace.jobs.kinds import CLEAN, CLEAN_NEXT, COMPACT
from headrace.metastore.api.jobs import Job
from tests.compactor.cleaning.test_guarantees import EAGER, HOUR_MS, rolled
from tests.compactor.cleaning.world import CleaningWorld
from tests.compactor.world import LEASE_MS
from tests.metastore.sessions import rows, session

HOUR_S = 3600
STEP_HOURS = 1 / 6
PASS_DELAY_HOURS = 0.55
"""Beyond segment.ms: a step until the planner looks, and two steps for its job; its merges are done by then."""
MERGE_DELAY_HOURS = (0.45, 1.1)
"""Hours until a merge by level: max_age_ms of the policy, ten minutes and an hour, and two steps for the job if no
pass was there first.
"""


async def plan_merges(world: CleaningWorld, **limits: Any) -> None:
    metrics = CompactionMetrics(CollectorRegistry())
    await world.run_job("plan-test", Planner(world.postgres, PolicyLimits(**limits), metrics).handle)


async def unfinished(world: CleaningWorld, kind: str) -> list[bytes]:
    (payloads,) = await world.postgres.compaction.unfinished_payloads(kind)
    return payloads


async def end_jobs(world: CleaningWorld, *kinds: str) -> None:
    """Do the same as if a worker had done them."""
    while (job := await world.postgres.jobs.claim_job("test", kinds, LEASE_MS)) is not None:
        await world.postgres.jobs.finish_job(job.token)


@pytest.mark.requirement("L7")
async def test_a_merge_of_the_active_part_does_not_hold_up_cleaning(world: CleaningWorld) -> None:
    (key,) = await world.topic("t", 1, **EAGER)
    for value in "12":
        await world.send(key, ("a", value))
    await world.compact(1)
    await rolled(world, key)
    await world.plan()
    await end_jobs(world, CLEAN.name)
    await world.send(key, ("b", "1"))
    newest = (await world.extents(key))[-1].file_id
    await world.postgres.jobs.enqueue_jobs([COMPACT.once("busy", encode(CompactionJob((newest,), 1)))])
    await world.plan()
    assert len(await unfinished(world, CLEAN.name)) == 1


@pytest.mark.requirement("L7")
async def test_a_cleaning_that_waits_does_not_stop_merges(
    world: CleaningWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps only files that hold what it will read; those do not fill the planner's look either."""
    monkeypatch.setattr(planner_module, "FILES_PER_LEVEL", 12)
    (hot,) = await world.topic("hot", 1, **EAGER)
    (other,) = await world.topic("other", 1)
    for key in (hot, other):
        for number in range(12):
            await world.send(key, ("a", str(number)))
    await world.wait(0.5)
    await world.postgres.jobs.enqueue_jobs([large_job(CleaningTask(hot, 9, 1))])
    await plan_merges(world)
    planned = {f for payload in await unfinished(world, COMPACT.name) for f in decode_job(payload).file_ids}
    in_hot = [extent.file_id for extent in await world.extents(hot)]
    assert planned.isdisjoint(in_hot[:9])
    assert planned >= set(in_hot[9:])
    assert planned & {extent.file_id for extent in await world.extents(other)}
    await world.wait(1)
    await end_jobs(world, COMPACT.name)
    await plan_merges(world)
    planned = {f for payload in await unfinished(world, COMPACT.name) for f in decode_job(payload).file_ids}
    assert planned >= set(in_hot[:9]), "they have waited for an hour"


async def in_a_merge(world: CleaningWorld) -> int:
    """Return the key of a partition to clean, with records in a file that an unfinished job merges."""
    (key,) = await world.topic("t", 1, **EAGER)
    for value in "12":
        await world.send(key, ("a", value))
    await world.compact(1)
    await rolled(world, key)
    (file_id,) = {extent.file_id for extent in await world.extents(key)}
    await world.postgres.jobs.enqueue_jobs([COMPACT.once("slow", encode(CompactionJob((file_id,), 2)))])
    return int(key)


@pytest.mark.requirement("L7")
async def test_a_pass_that_meets_a_merge_is_next(world: CleaningWorld) -> None:
    key = await in_a_merge(world)
    await world.plan()
    assert (len(await unfinished(world, CLEAN.name)), len(await unfinished(world, CLEAN_NEXT.name))) == (0, 1)
    await plan_merges(world, max_age_ms=60_000)
    assert len(await unfinished(world, COMPACT.name)) == 1, "no merge is planned before it"
    await world.wait(RESERVED_MS / HOUR_MS + 0.01)
    await world.plan()
    (payload,) = await unfinished(world, CLEAN.name)
    assert [task.partition_key for task in decode_cleaning(payload).tasks] == [key]
    assert not await unfinished(world, CLEAN_NEXT.name)


@pytest.mark.requirement("L7")
async def test_a_pass_that_waits_runs_once_its_merge_has_ended(world: CleaningWorld) -> None:
    """Merges take seconds, and RESERVED_MS is two minutes."""
    await in_a_merge(world)
    for _ in range(2):
        await world.plan()
        assert (len(await unfinished(world, CLEAN.name)), len(await unfinished(world, CLEAN_NEXT.name))) == (0, 1)
    await end_jobs(world, COMPACT.name)
    await world.plan()
    assert (len(await unfinished(world, CLEAN.name)), len(await unfinished(world, CLEAN_NEXT.name))) == (1, 0)


class BusyDays:
    """Virtual time in steps of ten minutes: flushes continue, each job takes two steps, planners look at each step."""

    def __init__(self, world: CleaningWorld, key: int) -> None:
        self.world, self.key = world, key
        self.running: list[tuple[int, Job]] = []
        self.longest_dirty = 0.0
        self.oldest = [0.0, 0.0]
        self.ended: dict[str, int] = {COMPACT.name: 0, CLEAN.name: 0}

    async def run(self, steps: int) -> None:
        world = self.world
        for step in range(steps):
            for number in range(2):
                await world.send(self.key, (f"k{number}", str(step)))
            await world.wait(STEP_HOURS)
            for began, job in list(self.running):
                if step >= began + 2:
                    self.running.remove((began, job))
                    await self.work(job)
            await plan_merges(world)
            await world.plan()
            for kind in (COMPACT.name, CLEAN.name):
                while (job := await world.postgres.jobs.claim_job("test", [kind], 24 * HOUR_MS)) is not None:
                    self.running.append((step, job))
            await self.measure()

    async def work(self, job: Job) -> None:
        self.ended[job.kind] += 1
        if job.kind == COMPACT.name:
            await self.world.run(job)
            return
        await self.world.cleaner().handle(job, self.world.lease(job))
        await self.world.postgres.jobs.finish_job(job.token)

    async def measure(self) -> None:
        """The age of the first dirty record beyond segment.ms, and of the oldest file of levels 0 and 1."""
        state = await self.world.state(self.key)
        if state.dirty_since_ms is not None:
            waited = (self.world.now_ms() - state.dirty_since_ms - HOUR_MS) / HOUR_MS
            self.longest_dirty = max(self.longest_dirty, waited)
        async with session(self.world.url) as raw:
            for level, age in await rows(
                raw,
                "SELECT level::int, max(extract(epoch FROM wall_time() - committed_at))::float8 FROM segment_files"
                " WHERE state = 0 AND dead_at IS NULL AND level < 2 GROUP BY 1",
            ):
                self.oldest[level] = max(self.oldest[level], age / HOUR_S)


@pytest.mark.requirement("L7")
@pytest.mark.parametrize("steps", [36, pytest.param(288, marks=pytest.mark.slow)])
async def test_neither_waits_without_limit_in_busy_days(world: CleaningWorld, steps: int) -> None:
    (key,) = await world.topic("t", 1, **EAGER)
    days = BusyDays(world, key)
    await days.run(steps)
    print(f"steps={steps} dirty={days.longest_dirty:.2f} h oldest={days.oldest} jobs={days.ended}")
    assert min(days.ended.values()) >= steps // 12
    assert days.longest_dirty <= PASS_DELAY_HOURS
    assert days.oldest[0] <= MERGE_DELAY_HOURS[0]
    assert days.oldest[1] <= MERGE_DELAY_HOURS[1]
    assert [value for _, _, value in await world.seen(key)][-2:] == [str(steps - 1)] * 2
