"""What only Postgres has of jobs: the fence under the row lock, read pins, refused values."""

from __future__ import annotations

import uuid

import pytest

from metastore.jobs import NewJob
from metastore.postgres.store import PostgresMetastore
from storage.errors import FencedError, InvalidError
from tests.metastore.sessions import move_time, rows, session

LEASE_MS = 30_000


async def move_clock(url: str, total_seconds: float) -> None:
    """Let the metastore's clock be this far ahead from now on."""
    async with session(url) as connection:
        await move_time(connection, total_seconds)


async def test_nobody_claims_a_job_while_an_action_of_its_holder_runs(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    await metastore.enqueue_jobs([NewJob("merge", "x")])
    job = await metastore.claim_job("a", ["merge"], LEASE_MS)
    assert job is not None
    await move_clock(metastore_url, 3600)
    async with session(metastore_url) as action:
        async with action.transaction():
            await rows(action, "SELECT assert_job(%s, %s)", *job.token)
            assert await metastore.claim_job("b", ["merge"], LEASE_MS) is None
        assert await metastore.claim_job("b", ["merge"], LEASE_MS) is not None


async def test_a_pin_protects_what_died_since_it_was_taken(metastore: PostgresMetastore, metastore_url: str) -> None:
    pin = uuid.uuid4()
    async with session(metastore_url) as raw:

        async def seconds_protected() -> float:
            """How far back; 0 when nothing is."""
            query = (
                "SELECT CASE WHEN h = 'infinity' THEN 0 ELSE extract(epoch FROM wall_time() - h) END::float"
                " FROM pin_horizon() AS h"
            )
            return float((await rows(raw, query))[0][0])

        assert await seconds_protected() == 0
        await metastore.pin_reads(pin, "export", 30_000)
        assert await seconds_protected() >= 60  # what a statement that still runs may have killed
        await move_clock(metastore_url, 20)
        await metastore.renew_pin(pin, 30_000)
        await metastore.pin_reads(pin, "export", 30_000)
        await move_clock(metastore_url, 40)
        assert await seconds_protected() >= 100
        await move_clock(metastore_url, 80)
        with pytest.raises(FencedError):
            await metastore.renew_pin(pin, 30_000)
        assert await seconds_protected() == 0
        await metastore.pin_reads(pin, "export", 30_000)
        await metastore.unpin_reads(pin)
        await metastore.unpin_reads(pin)
        assert await seconds_protected() == 0


async def test_a_job_without_sense_is_refused(metastore: PostgresMetastore) -> None:
    with pytest.raises(InvalidError):
        await metastore.enqueue_jobs([NewJob("merge", "x", priority=1 << 20)])
