"""From waiting files to jobs, on real Postgres."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from compactor.compact import KIND as COMPACT
from compactor.lease import Lease
from compactor.metrics import CompactionMetrics
from compactor.plan import decode_job
from compactor.planner import KIND, Planner
from compactor.policy import PolicyLimits
from metastore.jobs import NewJob
from storage.errors import FencedError
from tests.compactor.world import LEASE_MS, CompactionWorld
from tests.metastore.sessions import session
from tests.storage.batches import plain_batch

EAGER = PolicyLimits(min_age_ms=0, fan_in=3)


async def plan(world: CompactionWorld, limits: PolicyLimits = EAGER) -> None:
    await world.postgres.enqueue_jobs([NewJob(KIND, "")])
    job = await world.postgres.claim_job("test", [KIND], LEASE_MS)
    assert job is not None
    lease = Lease(world.postgres, job, world.clock, claimed_at=world.clock.monotonic(), lease_ms=LEASE_MS)
    await Planner(world.postgres, limits, CompactionMetrics(CollectorRegistry())).handle(job, lease)
    await world.postgres.finish_job(job.token)


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
    assert await world.postgres.unfinished_payloads(COMPACT) == []


async def test_files_of_unfinished_jobs_are_not_planned_again(world: CompactionWorld) -> None:
    (key,) = await world.topic("t", 1)
    for _ in range(4):
        await world.commit((key, plain_batch(1)))
    await plan(world)
    await world.commit((key, plain_batch(1)))
    await plan(world)
    (payload,) = await world.postgres.unfinished_payloads(COMPACT)
    assert len(decode_job(payload).file_ids) == 4


async def test_dead_and_unreadable_files_are_left_out(world: CompactionWorld) -> None:
    (key,) = await world.topic("t", 1)
    for _ in range(3):
        await world.commit((key, plain_batch(1)))
    first, second, third = await world.live_files()
    async with session(world.url) as connection:
        await connection.execute(
            "UPDATE segment_files SET unreadable_at = clock_timestamp() WHERE file_id = %s", (first,)
        )
        await connection.execute("UPDATE segment_files SET dead_at = clock_timestamp() WHERE file_id = %s", (second,))
    waiting = await world.postgres.waiting_files(first, 10)
    assert [file.file_id for file in waiting.files] == [third]
    async with session(world.url) as connection:
        await connection.execute("UPDATE segment_files SET unreadable_at = unreadable_at - interval '25 hours'")
    assert len((await world.postgres.waiting_files(first, 10)).files) == 2


async def test_a_planner_that_lost_its_lease_plans_nothing(world: CompactionWorld) -> None:
    (key,) = await world.topic("t", 1)
    for _ in range(3):
        await world.commit((key, plain_batch(1)))
    await world.postgres.enqueue_jobs([NewJob(KIND, "")])
    job = await world.postgres.claim_job("slow", [KIND], 1)
    assert job is not None
    lease = Lease(world.postgres, job, world.clock, claimed_at=world.clock.monotonic(), lease_ms=1)
    while await world.postgres.claim_job("quick", [KIND], LEASE_MS) is None:
        await world.clock.sleep(0.002)
    with pytest.raises(FencedError):
        await Planner(world.postgres, EAGER, CompactionMetrics(CollectorRegistry())).handle(job, lease)
    assert await world.postgres.unfinished_payloads(COMPACT) == []
