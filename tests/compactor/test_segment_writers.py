"""The records of segments say which job wrote them, and in which agent it ran."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from headrace.compactor.plan import CompactionJob, encode
from headrace.jobs.kinds import COMPACT
from headrace.jobs.runner import JobMetrics, JobRunner, RunnerTerms
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.api.segments import NO_BROKER
from headrace.storage.supervision import Supervisor
from tests.compactor.segment_world import HOUR, SegmentWorld
from tests.metastore.sql_sources import plant


async def compacted(world: SegmentWorld) -> tuple[int, int]:
    """A partition with one segment of the offsets 0 to 5, and its job's id."""
    (key,) = await world.topic(f"t{len(world.live)}", 1)
    await world.fill([key])
    job = await world.claim(await world.live_files(0), 1)
    await world.run(job)
    return key, job.token.job_id


async def jobs(world: SegmentWorld) -> list[tuple[int, int | None]]:
    """State and job of each record of the audit, in the order of their times and offsets."""
    found = await world.ask("SELECT state, job_id FROM remote_segment_events ORDER BY metadata_partition, audit_offset")
    return [(state, job_id) for state, job_id in found]


@pytest.mark.requirement("R12")
async def test_what_retention_deletes_carries_its_job(world: SegmentWorld) -> None:
    key, upload = await compacted(world)
    job = await world.claim([], 1)
    targets, head = [LogStartTarget(key, 6)], await world.postgres.cluster.metadata_head()
    await world.postgres.retention.enforce_retention(targets, max_extents=10, by=job.token, metadata_offset=head)
    retention = job.token.job_id
    assert await jobs(world) == [(0, upload), (1, upload), (2, retention)]
    (kept,) = await world.ask("SELECT job_id FROM remote_segments WHERE state = 2")
    assert kept == (retention,)
    await world.advance(2 * HOUR)
    await world.janitor()
    assert [state for state, _ in await jobs(world)] == [0, 1, 2, 3]


async def test_what_a_client_deletes_carries_no_job(world: SegmentWorld) -> None:
    key, upload = await compacted(world)
    await world.postgres.retention.move_log_starts([LogStartTarget(key, 6)], max_extents=10)
    assert await jobs(world) == [(0, upload), (1, upload), (2, None)]


async def test_retention_without_its_job_is_noticed(world: SegmentWorld, metastore_url: str) -> None:
    plant(metastore_url, "enforce_retention", "remove_below(p_job,", "remove_below(NULL,")
    with pytest.raises(AssertionError):
        await test_what_retention_deletes_carries_its_job(world)


@pytest.mark.requirement("R3", "R12")
async def test_records_name_the_agent_that_a_job_ran_in(world: SegmentWorld) -> None:
    (key,) = await world.filled()
    plan = CompactionJob(tuple(await world.live_files(0)), 1)
    await world.postgres.jobs.enqueue_jobs([COMPACT.once("t", encode(plan))])
    runner = runner_in(world, lambda: 7)
    await runner.drain()
    assert await brokers(world) == [(0, 7), (1, 7)]
    job = await world.claim([], 1)  # by a process without an agent
    targets, head = [LogStartTarget(key, 6)], await world.postgres.cluster.metadata_head()
    await world.postgres.retention.enforce_retention(targets, max_extents=10, by=job.token, metadata_offset=head)
    assert await brokers(world) == [(0, 7), (1, 7), (2, NO_BROKER)]


async def test_a_lease_of_an_older_worker_names_no_agent(world: SegmentWorld) -> None:
    """Although the lease before it did."""
    await world.postgres.jobs.enqueue_jobs([COMPACT.once("t")])
    job = await world.postgres.jobs.claim_job("new", [COMPACT.name], 1_000, node_id=7)
    assert job is not None
    assert await world.ask("SELECT job_broker(%s)", job.token.job_id) == [(7,)]
    await world.advance(2)
    ((again, *_),) = await world.ask("SELECT job_id FROM claim_job('old', %s, '1 s')", [COMPACT.name])
    assert await world.ask("SELECT job_broker(%s)", again) == [(NO_BROKER,)]


async def test_a_broker_id_that_is_not_recorded_is_noticed(world: SegmentWorld, metastore_url: str) -> None:
    plant(metastore_url, "record_segments", "v_broker  int := job_broker(p_job_id);", "v_broker  int := -1;")
    with pytest.raises(AssertionError):
        await test_records_name_the_agent_that_a_job_ran_in(world)


def runner_in(world: SegmentWorld, node_id: Callable[[], int]) -> JobRunner:
    """The job loop of an agent's process."""
    metrics = JobMetrics(world.clock, CollectorRegistry())
    handlers = {COMPACT.name: world.compactor().handle}
    return JobRunner(
        world.postgres.jobs,
        handlers,
        RunnerTerms("here", node_id=node_id),
        world.clock,
        world.rng,
        metrics,
        Supervisor(world.clock),
    )


async def brokers(world: SegmentWorld) -> list[tuple[int, int]]:
    """State and broker id of each record of the audit."""
    found = await world.ask(
        "SELECT state, broker_id FROM remote_segment_events ORDER BY metadata_partition, audit_offset"
    )
    return [(state, broker_id) for state, broker_id in found]
