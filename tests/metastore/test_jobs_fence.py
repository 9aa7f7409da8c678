"""What only Postgres has of jobs: the fence under the row lock, leases as read pins, refused values."""

from __future__ import annotations

import uuid

import pytest

from headrace.metastore.api.jobs import JobSchedule, NewJob
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError
from tests.metastore.sessions import Session, move_time, rows, session

LEASE_MS = 30_000


async def move_clock(url: str, total_seconds: float) -> None:
    """Let the metastore's clock be this far ahead from now on."""
    async with session(url) as connection:
        await move_time(connection, total_seconds)


async def test_no_worker_claims_a_job_while_an_action_of_its_holder_runs(
    metastore: PostgresMetastore, metastore_url: str, raw: Session
) -> None:
    await metastore.jobs.enqueue_jobs([NewJob("merge", "x")])
    job = await metastore.jobs.claim_job("a", ["merge"], LEASE_MS)
    assert job is not None
    await move_clock(metastore_url, 3600)
    async with raw.transaction():
        await rows(raw, "SELECT assert_job(%s, %s)", *job.token)
        assert await metastore.jobs.claim_job("b", ["merge"], LEASE_MS) is None
    assert await metastore.jobs.claim_job("b", ["merge"], LEASE_MS) is not None


async def test_a_lease_pins_what_is_dead_since_it_began(
    metastore: PostgresMetastore, metastore_url: str, raw: Session
) -> None:
    async def seconds_pinned() -> float:
        """Return how far back; 0 when nothing is."""
        query = (
            "SELECT CASE WHEN h = 'infinity' THEN 0 ELSE extract(epoch FROM wall_time() - h) END::float"
            " FROM read_horizon(0) AS h"
        )
        return float((await rows(raw, query))[0][0])

    lease = await metastore.controller.hold_controller_lease(0, uuid.UUID(int=1), 60_000)
    await metastore.jobs.schedule_jobs(lease.controller_epoch, [JobSchedule("sweep", 60_000)])
    assert await metastore.jobs.claim_job("a", ["sweep"], 10 * LEASE_MS) is not None
    await metastore.jobs.enqueue_jobs([NewJob("merge", "x"), NewJob("merge", "y")])
    assert await seconds_pinned() == 0, "no job reads"
    job = await metastore.jobs.claim_job("a", ["merge"], LEASE_MS)
    assert job is not None
    assert 60 <= await seconds_pinned() < 80, "what a statement that still runs may have killed"
    for seconds in (20, 40):
        await move_clock(metastore_url, seconds)
        await metastore.jobs.heartbeat_job(job.token, LEASE_MS, "")
    other = await metastore.jobs.claim_job("b", ["merge"], LEASE_MS)
    assert other is not None
    assert 100 <= await seconds_pinned() < 120, "the oldest counts"
    await move_clock(metastore_url, 60)
    await metastore.jobs.finish_job(job.token)
    assert 80 <= await seconds_pinned() < 100
    await move_clock(metastore_url, 100)
    assert await seconds_pinned() == 0, "its lease ran out"
    await metastore.jobs.heartbeat_job(other.token, LEASE_MS, "")
    assert await seconds_pinned() >= 120, "no worker took it over: it goes on"
    await metastore.jobs.fail_job(other.token, "no", 0)
    assert await seconds_pinned() == 0


async def test_a_job_without_sense_is_refused(metastore: PostgresMetastore) -> None:
    with pytest.raises(InvalidError):
        await metastore.jobs.enqueue_jobs([NewJob("merge", "x", priority=1 << 20)])
