"""Records of the audit trail keep their offsets and stay readable while they move to the bucket, after any fault."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import psycopg
import pytest
from kio.schema.errors import ErrorCode

from headrace.compactor import segments
from headrace.compactor.segments import AuditArchiver, joinable
from headrace.jobs.kinds import ARCHIVE_AUDIT
from headrace.jobs.lease import Lease
from headrace.metastore.api.audit_archive import ArchivedAudit
from headrace.metastore.audit_trail import AuditReader, TrailPage
from headrace.metastore.postgres.housekeeping import housekeeping as postgres_housekeeping
from headrace.metastore.postgres.segments.audit_archive import PostgresAuditArchive
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.protocol.fetch_codec import FetchPartition
from headrace.storage.errors import FencedError, HeadraceError, UnavailableError
from headrace.storage.objects.store import ByteRange
from tests.compactor.audit_trail_world import (
    BACKUP_MS,
    DAY_MS,
    RECORDS,
    RETENTION_MS,
    TrailWorld,
    small_objects,
)
from tests.compactor.janitor_world import DoubtfulStore, Killed, Tripwire
from tests.metastore.sessions import claim
from tests.metastore.sql_sources import plant
from tests.patch import Patch
from tests.seeds import seeds

pytestmark = pytest.mark.requirement("R3")
STEPS = 100
CALLS_MAX = 10_000
"""No run makes as many."""
MISSING = "headrace_audit_trail_objects_missing"


@pytest.fixture
async def world(
    metastore: PostgresMetastore, metastore_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TrailWorld]:
    small_objects(monkeypatch)
    with psycopg.connect(metastore_url) as connection:
        yield await TrailWorld.open(metastore, connection, metastore_url)


async def live(world: TrailWorld, seed: int) -> None:
    """Events, archiving by several workers, retention, crashes, restores; then all of the trail is read."""
    world.rng.seed(seed)
    await world.keep_deleted(BACKUP_MS)
    followed = dict.fromkeys(world.model, 0)
    for _ in range(STEPS):
        await world.step()
        for part, offset in followed.items():
            end = (await world.metastore.segment_logs.segment_log_ends())[part].next_audit_offset
            followed[part] = await world.check_fetch(part, min(offset, end))
    while world.paused:
        await world.go_on()
    await world.check()
    await world.check_bucket()
    await world.check()


@pytest.mark.parametrize("seed", seeds(range(2), range(2, 8)))
async def test_every_offset_gives_the_same_records_through_any_history(world: TrailWorld, seed: int) -> None:
    await live(world, seed)


async def crash_everywhere(world: TrailWorld, made: type[AuditArchiver] = AuditArchiver, step: int = 1) -> None:
    """Before and after every `step`-th call of a run that archives, deletes and sweeps, from the first one on."""
    await crash_from(1, world, made, step)


async def crash_from(at: int, world: TrailWorld, made: type[AuditArchiver], step: int) -> None:
    is_after = False
    while True:
        await world.append(2 * RECORDS + 2)
        wire = Tripwire(at, after=is_after)
        archiver = world.new_archiver(wire.over(world.metastore), wire.over(world.store), made)
        try:
            await world.archive(archiver)
        except Killed:
            await world.check()
        else:
            break
        world.advance(RETENTION_MS // 8)
        await world.trim()
        await world.check()
        at, is_after = at + is_after * step, not is_after
    assert at > 12
    await world.check_bucket()
    await world.check()


@pytest.mark.parametrize("step", seeds([13], [1]))
async def test_a_crash_at_any_step_loses_and_moves_nothing(world: TrailWorld, step: int) -> None:
    await crash_everywhere(world, step=step)


async def test_what_waits_is_shown_from_when_a_block_is_full(
    world: TrailWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_housekeeping, "BLOCK_RECORDS", RECORDS)
    await world.append(RECORDS - 1)
    world.advance(DAY_MS)
    assert await world.metastore.housekeeping.oldest_audit_block() == 0
    await world.append(2 * RECORDS)
    assert 0 <= await world.metastore.housekeeping.oldest_audit_block() < 600
    world.advance(3_600_000)
    assert 3_600 <= await world.metastore.housekeeping.oldest_audit_block() < 4_200
    world.execute("UPDATE features SET max_level = 3 WHERE name = 'metadata.format'")
    assert await world.metastore.housekeeping.oldest_audit_block() == 0
    world.execute("UPDATE features SET max_level = 4 WHERE name = 'metadata.format'")
    await world.archive()
    assert await world.metastore.housekeeping.oldest_audit_block() == 0


async def test_rows_that_are_few_stay(world: TrailWorld) -> None:
    await world.append(RECORDS - 1)
    await world.archive()
    assert await world.objects() == set()
    await world.append(6 * RECORDS)
    await world.archive()
    ((left,),) = world.execute("SELECT max(n) FROM (SELECT count(*) AS n FROM remote_segment_events GROUP BY"
                               " metadata_partition) AS c")  # fmt: skip
    assert left < RECORDS
    assert await world.objects() == await world.named() != set()
    await world.check()


async def test_nothing_moves_while_an_agent_of_the_release_before_may_run(world: TrailWorld) -> None:
    await world.append(4 * RECORDS)
    world.execute("UPDATE features SET max_level = 3 WHERE name = 'metadata.format'")
    await world.archive()
    assert await world.objects() == set()
    world.execute("UPDATE features SET max_level = 4 WHERE name = 'metadata.format'")
    part, first = (await world.metastore.audit_archive.archivable_audit(RECORDS))[0]
    world.execute("UPDATE features SET max_level = 3 WHERE name = 'metadata.format'")
    token = (await claim(world.metastore, ARCHIVE_AUDIT.name)).token
    late = ArchivedAudit(part, first, first + RECORDS - 1, RECORDS, 0, 9, 3, token.epoch)
    assert not await world.metastore.audit_archive.archive_audit(token, late)
    world.execute("UPDATE features SET max_level = 4 WHERE name = 'metadata.format'")
    await world.check()


async def test_only_the_oldest_rows_of_the_lease_that_holds_the_job_go(world: TrailWorld) -> None:
    await world.append(4 * RECORDS)
    part, first = (await world.metastore.audit_archive.archivable_audit(RECORDS))[0]
    token = (await claim(world.metastore, ARCHIVE_AUDIT.name)).token
    whole = ArchivedAudit(part, first, first + RECORDS - 1, RECORDS, 0, 9, 3, token.epoch)
    with pytest.raises(FencedError):
        await world.metastore.audit_archive.archive_audit(token._replace(epoch=token.epoch - 1), whole)
    for wrong in (
        whole._replace(records=RECORDS - 1),
        whole._replace(first_offset=first + 1, records=RECORDS - 1),
        whole._replace(last_offset=first + RECORDS),
    ):
        assert not await world.metastore.audit_archive.archive_audit(token, wrong)
    await world.check()
    assert await world.metastore.audit_archive.archive_audit(token, whole)
    assert await world.metastore.audit_archive.archive_audit(token, whole), "a repeated call"
    longer = whole._replace(last_offset=first + RECORDS, records=RECORDS + 1)
    assert not await world.metastore.audit_archive.archive_audit(token, longer), "another object has a part of it"


async def test_an_object_that_retention_deletes_during_a_fetch_is_out_of_range(world: TrailWorld) -> None:
    await world.append(4 * RECORDS)
    await world.archive()
    world.advance(RETENTION_MS + 1)

    class Slow:
        """Retention runs between the answer of the metastore and the read."""

        async def get(self, key: str, byte_range: ByteRange) -> bytes:
            await world.trim()
            await world.archive()
            return await world.store.get(key, byte_range)

    topic = world.new_topic(store=Slow())
    part = min(world.model)
    reply = await topic.fetch(FetchPartition(part, 0, 1 << 20))
    assert reply.error_code == ErrorCode.offset_out_of_range
    assert reply.log_start_offset == world.starts[part] > 0
    assert await world.objects() == set()


async def test_an_object_that_is_joined_during_a_fetch_is_read_in_its_place(world: TrailWorld) -> None:
    part = min(world.model)
    for _ in range(4):
        await world.append(3 * RECORDS)
        await world.archive(world.archiver)
    before = await world.named()

    class Slow:
        """All objects are joined between the answer of the metastore and the read."""

        async def get(self, key: str, byte_range: ByteRange) -> bytes:
            await world.archive(world.new_archiver())
            return await world.store.get(key, byte_range)

    assert await world.check_fetch(part, 0, world.new_topic(store=Slow())) > 0
    await world.archive(world.new_archiver())
    assert len(await world.named()) < len(before)
    assert await world.objects() == await world.named()
    await world.check()


def test_neighbours_of_a_day_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "JOIN_RECORDS", 100)
    days = [0, 0, 1, 3, 3, 3, 3, 3, 3, 9]
    sizes = [60, 30, 30, 40, 200, 50, 30, 30, 90, 99]
    rows = [
        ArchivedAudit(1, 10 * n, 10 * n + 9, size, day * DAY_MS, 1, 1, n, is_due=n == 6)
        for n, (day, size) in enumerate(zip(days, sizes, strict=True))
    ]
    assert [[row.epoch for row in group] for group in joinable(rows)] == [[0, 1, 2], [5, 7, 8]]


async def test_an_object_that_is_missing_is_an_error_and_no_gap(world: TrailWorld) -> None:
    await world.append(4 * RECORDS)
    await world.archive()
    lost = min(await world.objects())
    data = await world.store.get(lost)
    await world.store.delete_many([lost])
    part = min(world.model)
    reply = await world.topic.fetch(FetchPartition(part, 0, 1 << 20))
    assert (reply.error_code, reply.records) == (ErrorCode.kafka_storage_error, ())
    archiver = world.new_archiver()
    await world.archive(archiver)
    assert world.registry.get_sample_value(MISSING) == 1
    await world.store.put(lost, data)
    for _ in range(segments.RUNS_PER_RECHECK):
        await world.archive(archiver)
    assert world.registry.get_sample_value(MISSING) == 0, "it was copied back"
    await world.check()


async def test_rows_that_a_restore_brings_back_are_read_and_archived_again(world: TrailWorld) -> None:
    await world.append(4 * RECORDS)
    await world.resume()
    world.save()
    await world.archive()
    lost = await world.objects()
    await world.append(RECORDS)
    world.restore()
    await world.check()
    await world.append(4 * RECORDS)
    await world.archive()
    await world.check()
    assert lost <= await world.objects(), "no deletion before an audit"
    world.advance(2 * DAY_MS)
    await world.archive(world.new_archiver())
    assert lost <= await world.objects(), "no deletion before an audit"
    await world.check_bucket()
    assert not lost & await world.objects()
    await world.check()


async def test_a_backup_older_than_the_delay_names_objects_that_are_gone_until_retention_runs(
    world: TrailWorld,
) -> None:
    """As of segment files: file.delete.delay.ms should be at least the age of backups."""
    await world.append(4 * RECORDS)
    await world.archive()
    world.save()
    world.advance(RETENTION_MS + 1)
    await world.trim()
    await world.archive()
    assert await world.objects() == set()
    world.restore()
    reply = await world.topic.fetch(FetchPartition(min(world.model), 0, 1 << 20))
    assert reply.error_code == ErrorCode.kafka_storage_error
    await world.trim()
    await world.append(RECORDS)
    await world.check()


async def test_an_object_that_the_store_refuses_to_delete_keeps_its_row(world: TrailWorld) -> None:
    world.store = DoubtfulStore()
    world.archiver = world.new_archiver()
    await world.append(4 * RECORDS)
    await world.archive()
    refused = min(await world.objects())
    world.store.refuse = {refused}
    world.advance(RETENTION_MS + 1)
    await world.trim()
    with pytest.raises(UnavailableError, match="refused by the store"):
        await world.archive()
    assert await world.objects() == await world.named() == {refused}
    world.store.refuse = set()
    await world.archive()
    assert await world.objects() == await world.named() == set()


async def test_a_worker_of_the_life_before_deletes_no_object_of_the_next(world: TrailWorld) -> None:
    """It sees no row of the new object, and the bucket's mark is still its own."""
    await world.append(4 * RECORDS)
    await world.archive()
    token = (await claim(world.metastore, ARCHIVE_AUDIT.name)).token
    later = ArchivedAudit(min(world.model), 1 << 20, (1 << 20) + 4, RECORDS, 0, 1, 1, token.epoch + (1 << 20))
    await world.store.put(later.object_key, b"x")
    await world.store.put(later._replace(epoch=1).object_key, b"x")
    world.advance(2 * DAY_MS)
    await world.archive(world.new_archiver())
    assert later.object_key in await world.objects()
    assert later._replace(epoch=1).object_key not in await world.objects()


class RowsFirst(AuditArchiver):
    """Rows go before the object is there, and the worker is killed between the two, at no other call: which of the
    calls that several jobs make at once comes next is not known."""

    async def _move(self, lease: Lease, archived: ArchivedAudit, data: bytes) -> bool:
        if await self._api.audit_archive.archive_audit(lease.token, archived):
            raise Killed
        return False


async def _to_the_end(self: AuditReader, part: int, offset: int, limit: int) -> TrailPage:
    page = await PAGE_OF(self, part, offset, limit)
    return page._replace(end_offset=page.ends.next_audit_offset) if len(page.rows) < limit else page


async def _no_rows(self: PostgresMetastore, metadata_partition: int) -> Sequence[ArchivedAudit]:
    return []


PAGE_OF = AuditReader.page
SQL_BUGS = {
    "one row too many goes": (
        "archive_audit",
        "AND audit_offset <= p_last_offset;",
        "AND audit_offset <= p_last_offset + 1;",
    ),
    "a join takes later objects along": (
        "archive_audit",
        "last_offset BETWEEN p_first_offset AND p_last_offset\n       AND due_at IS NULL;",
        "last_offset >= p_first_offset AND due_at IS NULL;",
    ),
    "the range ends one too early": (
        "archive_audit",
        "VALUES (p_metadata_partition, p_last_offset,",
        "VALUES (p_metadata_partition, p_last_offset - 1,",
    ),
}


@pytest.mark.parametrize(
    "bug",
    ["rows go before the object is there", "one row too many goes", "the range ends one too early",
     "a join takes later objects along", "a page covers what is not read", "an object goes while its row is there"],
)  # fmt: skip
async def test_a_planted_bug_is_caught(world: TrailWorld, patch: Patch, bug: str) -> None:
    proof = live(world, 1)
    if bug.startswith("rows go"):
        proof.close()
        proof = crash_from(CALLS_MAX, world, RowsFirst, step=1)
    elif bug in SQL_BUGS:
        plant(world.url, *SQL_BUGS[bug])
    elif bug.startswith("a page"):
        patch.replace(AuditReader, "page", _to_the_end)
    else:
        patch.replace(PostgresAuditArchive, "archived_audit", _no_rows)
    with pytest.raises((AssertionError, HeadraceError)):
        await proof
