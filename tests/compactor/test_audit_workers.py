"""Several workers archive the audit trail at once; what one of them does late neither loses nor doubles a record.

Fault model: a worker stops between two calls, as with SIGSTOP, for as long as a day, and continues. Random histories
with such workers are in test_audit_archive.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from headrace.compactor.segments import SWEEP_AGE_MS
from headrace.jobs.kinds import ARCHIVE_AUDIT_ROWS
from headrace.metastore.postgres.segments.audit_archive import PostgresAuditArchive
from headrace.metastore.postgres.store import PostgresMetastore
from tests.compactor.audit_trail_world import LEASE_MS, RECORDS, TrailWorld, small_objects
from tests.compactor.janitor_world import PausingWire
from tests.metastore.sql_sources import plant
from tests.patch import Patch

pytestmark = pytest.mark.requirement("R3")
CALLS_TO_PUT = 4
"""Number of calls of a worker with rows for one object of two blocks: where rows are, two pages, the PUT."""


@pytest.fixture
async def world(
    metastore: PostgresMetastore, metastore_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TrailWorld]:
    small_objects(monkeypatch)
    with psycopg.connect(metastore_url) as connection:
        yield await TrailWorld.open(metastore, connection, metastore_url)


async def paused_between_put_and_statement(world: TrailWorld) -> None:
    """A worker stops with its object stored, and a day later it still has its lease: no other one claimed it."""
    await world.append(8 * RECORDS)
    stopped = PausingWire(CALLS_TO_PUT, after=True)
    assert await world.pause(stopped) is not None
    assert stopped.reached.is_set()
    (unnamed,) = await world.objects() - await world.named()
    world.advance(SWEEP_AGE_MS + 1)
    await world.plan(world.new_archiver())
    assert await world.go_on()
    assert unnamed in await world.named()
    await world.check()


async def test_an_object_of_a_lease_that_holds_is_not_swept(world: TrailWorld) -> None:
    await paused_between_put_and_statement(world)
    await world.check_bucket()


async def test_workers_archive_different_partitions_at_once(world: TrailWorld) -> None:
    await world.append(8 * RECORDS)
    stopped = [PausingWire(CALLS_TO_PUT, after=True) for _ in world.model]
    jobs = [await world.pause(wire) for wire in stopped]
    assert {int(job.key) for job in jobs if job is not None} == set(world.model)
    assert all(wire.reached.is_set() for wire in stopped), "both have stored an object, and neither waits for the other"
    assert await world.pause(PausingWire(1, after=False)) is None, "no third one"
    while world.paused:
        assert await world.go_on()
    assert all([await world.metastore.audit_archive.archived_audit(part) for part in world.model])
    await world.check()


async def swept_after_its_lease(world: TrailWorld) -> None:
    """A worker stops with its object stored; another one claims its job, and stops before it has moved anything."""
    await world.append(8 * RECORDS)
    stopped = PausingWire(CALLS_TO_PUT, after=True)
    job = await world.pause(stopped)
    assert job is not None
    (unnamed,) = await world.objects() - await world.named()
    world.advance(SWEEP_AGE_MS + 1)
    while (again := await world.metastore.jobs.claim_job("another", [ARCHIVE_AUDIT_ROWS.name], LEASE_MS)) is not None:
        if again.key == job.key:
            break
    assert again is not None
    await world.plan(world.new_archiver())
    assert unnamed not in await world.objects()
    assert not await world.go_on()
    await world.check()


async def test_a_worker_that_lost_its_lease_names_nothing(world: TrailWorld) -> None:
    await swept_after_its_lease(world)
    await world.check_bucket()


async def test_a_sweep_that_does_not_look_at_leases_is_caught(world: TrailWorld, patch: Patch) -> None:
    async def no_leases(self: PostgresAuditArchive, kind: str) -> set[int]:
        return set()

    patch.replace(PostgresAuditArchive, "archiving_epochs", no_leases)
    with pytest.raises(AssertionError):
        await paused_between_put_and_statement(world)


async def test_a_statement_without_the_fence_is_caught(world: TrailWorld) -> None:
    fence, rest = "    PERFORM assert_job(p_job_id, p_epoch);\n", "    PERFORM FROM archived_audit"
    plant(world.url, "archive_audit", fence + rest, rest)
    with pytest.raises(AssertionError):
        await swept_after_its_lease(world)
