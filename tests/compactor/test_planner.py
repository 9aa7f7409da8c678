"""Tests of the way from waiting files to jobs, on real Postgres."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.compactor import planner
from headrace.compactor.compact import CompactionMetrics
from headrace.compactor.plan import decode_job
from headrace.compactor.planner import Planner, PolicyLimits
from headrace.jobs.kinds import COMPACT, COMPACT_LARGE, PLAN_COMPACTION
from headrace.metastore.api.jobs import Job
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.storage.errors import FencedError
from tests.compactor.world import LEASE_MS, CompactionWorld
from tests.metastore.sessions import claim, move_time, session
from tests.storage.batches import plain_batch

EAGER = PolicyLimits(min_age_ms=0, fan_in=3)
SPARK = replace(EAGER, large_bytes=1, large_wait_ms=3_600_000)
"""Every job is large."""


async def plan(world: CompactionWorld, limits: PolicyLimits = EAGER) -> None:
    planner = Planner(world.postgres, limits, CompactionMetrics(CollectorRegistry()))
    await world.run_job(PLAN_COMPACTION.name, planner.handle)


async def test_files_climb_level_by_level_until_nothing_is_worth_a_job(world: CompactionWorld) -> None:
    (key,) = await world.topic("t", 1)
    for number in range(9):
        await world.commit((key, plain_batch(2, b"%d" % number)))
        if number % 3 == 2:
            await plan(world)
            await world.run(await world.claim_next())
    assert len(await world.live_files(level=1)) == 3
    await plan(world)
    await world.run(await world.claim_next())
    assert len(await world.live_files(level=2)) == 1
    await plan(world)
    assert await world.postgres.compaction.unfinished_payloads(COMPACT.name) == [[]]


async def test_files_of_unfinished_jobs_are_not_planned_again(world: CompactionWorld) -> None:
    (key,) = await world.topic("t", 1)
    for _ in range(4):
        await world.commit((key, plain_batch(1)))
    await plan(world)
    await world.commit((key, plain_batch(1)))
    await plan(world)
    ((payload,),) = await world.postgres.compaction.unfinished_payloads(COMPACT.name)
    assert len(decode_job(payload).file_ids) == 4


async def test_dead_and_unreadable_files_are_left_out(world: CompactionWorld) -> None:
    """Only a compactor of the release before marks files as unreadable: they are left out for ten minutes."""
    (key,) = await world.topic("t", 1)
    for _ in range(3):
        await world.commit((key, plain_batch(1)))
    first, second, third = await world.live_files()
    async with session(world.url) as connection:
        await connection.execute(
            "UPDATE segment_files SET unreadable_at = clock_timestamp() WHERE file_id = %s", (first,)
        )
        await connection.execute("UPDATE segment_files SET dead_at = clock_timestamp() WHERE file_id = %s", (second,))
    waiting = await world.postgres.compaction.waiting_files(first, 10)
    assert [file.file_id for file in waiting.files] == [third]
    async with session(world.url) as connection:
        await connection.execute("UPDATE segment_files SET unreadable_at = unreadable_at - interval '11 minutes'")
    assert len((await world.postgres.compaction.waiting_files(first, 10)).files) == 2


async def test_a_planner_that_lost_its_lease_plans_nothing(world: CompactionWorld) -> None:
    (key,) = await world.topic("t", 1)
    for _ in range(3):
        await world.commit((key, plain_batch(1)))
    job = await claim(world.postgres, PLAN_COMPACTION.name, worker="slow", lease_ms=1)
    lease = world.lease(job, lease_ms=1)
    while await world.postgres.jobs.claim_job("quick", [PLAN_COMPACTION.name], LEASE_MS) is None:
        await world.clock.sleep(0.002)
    with pytest.raises(FencedError):
        await Planner(world.postgres, EAGER, CompactionMetrics(CollectorRegistry())).handle(job, lease)
    assert await world.postgres.compaction.unfinished_payloads(COMPACT.name) == [[]]


async def test_a_plan_without_anything_to_do_asks_three_times(
    world: CompactionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    rows = Statement.send

    async def counted(self: Statement, pool: Pool, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        asked.append(self.name)
        return await rows(self, pool, parameters)

    monkeypatch.setattr(Statement, "send", counted)
    await plan(world)
    assert asked == [
        "enqueue_jobs",
        "claim_job_as",
        "unfinished_payloads",
        "inline_state",
        "waiting_files",
        "finish_job",
    ]


# -- large jobs: Spark's for a time


async def three_files(world: CompactionWorld, key: int) -> None:
    for number in range(3):
        await world.commit((key, plain_batch(2, b"%d" % number)))


async def planned_for_spark(world: CompactionWorld) -> int:
    """A partition with three files, and the large job that was planned over them."""
    (key,) = await world.topic("t", 1)
    await three_files(world, key)
    await plan(world, SPARK)
    return key


async def claim_large(world: CompactionWorld, *, lease_ms: int = LEASE_MS) -> Job | None:
    """The same as a Spark driver does."""
    return await world.postgres.jobs.claim_job("spark", [COMPACT_LARGE.name], lease_ms)


async def count(world: CompactionWorld, kind: str) -> int:
    return len((await world.postgres.compaction.unfinished_payloads(kind))[0])


async def test_large_jobs_are_left_to_spark_for_its_time_and_then_done_here(world: CompactionWorld) -> None:
    (key,) = await world.topic("t", 1)
    await three_files(world, key)
    before = await world.records(key)
    await plan(world, SPARK)
    await plan(world, SPARK)
    assert (await count(world, COMPACT.name), await count(world, COMPACT_LARGE.name)) == (0, 1)
    async with session(world.url) as connection:
        await move_time(connection, 3_601)
    await plan(world, SPARK)
    assert await claim_large(world) is None
    await world.run(await world.claim_next())
    assert len(await world.live_files(level=1)) == 1
    assert await world.records(key) == before
    await world.check_accounts()


async def test_a_spark_driver_that_came_too_late_swaps_nothing(world: CompactionWorld) -> None:
    key = await planned_for_spark(world)
    driver = await claim_large(world)
    assert driver is not None
    async with session(world.url) as connection:
        await move_time(connection, 3_601)  # its lease ran out, too
    await plan(world, SPARK)
    before = await world.extents(key)
    with pytest.raises(FencedError):
        await world.run(driver)
    assert await world.extents(key) == before
    await world.run(await world.claim_next())
    assert len(await world.extents(key)) == 1


async def test_what_spark_fails_at_again_and_again_is_done_here(world: CompactionWorld) -> None:
    await planned_for_spark(world)
    for attempt in range(planner.SPARK_ATTEMPTS):
        assert await count(world, COMPACT.name) == 0, attempt
        driver = await claim_large(world)
        assert driver is not None
        await plan(world, SPARK)
        await world.postgres.jobs.fail_job(driver.token, "no executors", 0)
    await plan(world, SPARK)
    await world.run(await world.claim_next())
    assert len(await world.live_files()) == 1


async def test_without_large_jobs_those_that_are_left_are_done_here_at_once(world: CompactionWorld) -> None:
    await planned_for_spark(world)
    await plan(world, EAGER)
    assert (await count(world, COMPACT.name), await count(world, COMPACT_LARGE.name)) == (1, 0)


async def test_what_waits_for_spark_holds_up_nothing_else(
    world: CompactionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More large jobs than Spark should be given, and more files in them than a plan looks at."""
    monkeypatch.setattr(planner, "UNFINISHED_MAX", 2)
    monkeypatch.setattr(planner, "FILES_PER_LEVEL", 3)
    (key,) = await world.topic("t", 1)
    for large in range(1, 3):
        await three_files(world, key)
        await plan(world, SPARK)
        assert (await count(world, COMPACT.name), await count(world, COMPACT_LARGE.name)) == (0, large)
    await three_files(world, key)
    await plan(world, SPARK)
    assert (await count(world, COMPACT.name), await count(world, COMPACT_LARGE.name)) == (1, 2)
    await world.run(await world.claim_next())
    assert len(await world.live_files(level=0)) == 6
    assert len(await world.live_files(level=1)) == 1
