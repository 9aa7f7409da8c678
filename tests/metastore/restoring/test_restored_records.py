"""Records that a retention set too short, or DeleteRecords, has removed come back as far as they are whole."""

from __future__ import annotations

import pytest

from headrace.metastore.api.read import ExtentQuery, FeedKind, OffsetKind, OffsetQuery
from headrace.metastore.api.restoring import MovedBack, RestoreOutcome
from headrace.metastore.api.retention import LogStartTarget, OldestQuery
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.topic_restore import restore_removed
from headrace.storage.errors import NotFoundError
from tests.metastore.byte_sums import unaccounted
from tests.metastore.commit_scenes import Scene, batch, file_of, open_scene
from tests.metastore.restoring.restore_scenes import (
    DELAY,
    HOUR_MS,
    delete_and_purge,
    delete_restorably,
    keep_files,
    restore,
    rows_of,
)
from tests.metastore.sessions import Session, move_time, rows, set_for_cluster
from tests.metastore.transactions.transaction_scenes import aborts, open_transactions, read

DONE = RestoreOutcome.DONE
FILES = 10


@pytest.fixture
async def scene(metastore: PostgresMetastore) -> Scene:
    """The topic of each test."""
    return await filled_scene(metastore)


async def filled_scene(metastore: PostgresMetastore) -> Scene:
    """A topic of one partition with ten extents of five records, each in another file."""
    scene = await open_scene(metastore)
    await keep_files(scene)
    for sequence in range(0, 5 * FILES, 5):
        await scene.outcomes(batch(scene.keys[0], sequence))
    return scene


async def remove(scene: Scene, offset: int, most: int = 100) -> None:
    """Move the log start, as DeleteRecords and retention do."""
    await scene.store.retention.move_log_starts([LogStartTarget(scene.keys[0], offset)], max_extents=most)


async def move_back(scene: Scene, offset: int = 0, limit: int = 100) -> MovedBack:
    """One call of the restore."""
    return await scene.store.topics.restore_records(scene.keys[0], offset, limit=limit)


async def start_of(scene: Scene) -> int:
    """Return the log start that readers get."""
    return (await scene.store.index.list_offsets([OffsetQuery(scene.keys[0], OffsetKind.EARLIEST)]))[0].offset


@pytest.mark.parametrize(
    "chunk", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(100, marks=pytest.mark.slow)]
)
async def test_removed_records_come_back_as_they_were(scene: Scene, raw: Session, chunk: int) -> None:
    before = await rows_of(raw, scene)
    await remove(scene, 20)
    await remove(scene, 38, most=2)
    await remove(scene, 38)
    (removed,) = await scene.store.topics.removed_records(scene.keys, extents_max=100)
    assert removed[2:7] == (38, 0, 0, 7, 700)
    answers = [await move_back(scene, limit=chunk)]
    while answers[-1].outcome is RestoreOutcome.UNFINISHED:
        assert await unaccounted(raw) == [], "each call leaves a whole log"
        (found,) = await scene.store.index.find_extents([ExtentQuery(scene.keys[0], await start_of(scene), 1 << 40)])
        assert (found.extents[0].base_offset, len(found.extents)) == (
            await start_of(scene),
            FILES - await start_of(scene) // 5,
        )
        answers.append(await move_back(scene, limit=chunk))
    assert sum(answer.extents for answer in answers) == 7
    assert await rows_of(raw, scene) == before
    assert await unaccounted(raw) == []
    assert await move_back(scene) == MovedBack(DONE, 0, 0, 0), "a repeated call does nothing"


async def test_the_wanted_offset_is_the_log_start(scene: Scene, raw: Session) -> None:
    await remove(scene, 42)
    assert await move_back(scene, 13) == MovedBack(DONE, 13, 6, 600)
    assert (await start_of(scene), (await scene.read())[0]) == (13, (10, 14))
    await remove(scene, 42)
    assert await move_back(scene, 0) == MovedBack(DONE, 0, 8, 800)
    assert await unaccounted(raw) == []


@pytest.mark.slow
async def test_a_log_start_within_an_extent_moves_back_in_it(scene: Scene, raw: Session) -> None:
    """Nothing was removed: the extent has records that are to be kept."""
    await remove(scene, 3)
    assert await move_back(scene, 1) == MovedBack(DONE, 1, 0, 0)
    assert await move_back(scene, 0) == MovedBack(DONE, 0, 0, 0)
    assert await unaccounted(raw) == []


async def test_records_that_were_not_removed_yet_come_back_too(scene: Scene, raw: Session) -> None:
    """A call removes a limited number of extents; the rest is below the log start until the next one."""
    before = await rows_of(raw, scene)
    await remove(scene, 40, most=3)
    assert (await move_back(scene)).log_start_offset == 0
    assert await rows_of(raw, scene) == before
    assert await unaccounted(raw) == []


@pytest.mark.slow
async def test_an_empty_log_gets_all_of_it_back(scene: Scene) -> None:
    await remove(scene, -1)
    assert await start_of(scene) == 5 * FILES
    assert (await move_back(scene)).log_start_offset == 0
    assert len(await scene.read()) == FILES


async def test_the_log_start_stops_above_a_file_that_may_be_deleted(scene: Scene, raw: Session) -> None:
    await remove(scene, 40)
    third = "(SELECT file_id FROM removed_extents WHERE base_offset = 10)"
    await raw.execute(f"UPDATE segment_files SET state = 2 WHERE file_id = {third}".encode())
    assert (await move_back(scene)).log_start_offset == 15
    assert await unaccounted(raw) == []


async def test_what_retention_would_remove_again(scene: Scene, raw: Session) -> None:
    """By time and by size, as retention decides (compactor/retention.py): it stops at the first extent to keep."""
    await remove(scene, 40)
    now, _ = await scene.store.retention.oldest_extents([OldestQuery(scene.keys[0], 1)])
    young = "UPDATE removed_extents SET max_timestamp = %s WHERE base_offset IN (10, 20, 30)"
    await raw.execute(young, [now])

    async def kept_from(retention_ms: int, retention_bytes: int) -> int:
        (found,) = await scene.store.topics.removed_records(
            scene.keys, extents_max=100, retention_ms=retention_ms, retention_bytes=retention_bytes
        )
        assert found.lowest == 0
        return found.kept_from

    assert await kept_from(-1, -1) == 0
    assert await kept_from(now + HOUR_MS, -1) == 0
    assert await kept_from(HOUR_MS, -1) == 10
    assert await kept_from(HOUR_MS, 700) == 20
    assert [await kept_from(-1, size) for size in (0, 200, 201, 300, 1_000)] == [40, 40, 35, 35, 0]


async def test_the_log_start_stops_above_a_hole(scene: Scene, raw: Session) -> None:
    await remove(scene, 40)
    await raw.execute("DELETE FROM removed_extents WHERE base_offset = 20")
    assert await move_back(scene) == MovedBack(DONE, 25, 3, 300)


async def test_what_an_earlier_life_removed_stays_removed(scene: Scene, raw: Session) -> None:
    await remove(scene, 20)
    await raw.execute("UPDATE removed_extents SET life = life - 1")
    await remove(scene, 40)
    assert (await move_back(scene)).log_start_offset == 20


async def test_after_the_delay_housekeeping_forgets_the_lowest_first(scene: Scene, raw: Session) -> None:
    await remove(scene, 20)
    await move_time(raw, 1_800)
    await remove(scene, 40)
    await move_time(raw, 3_660)
    while await scene.store.housekeeping.prune_removed_extents(2):
        pass
    assert (await move_back(scene)).log_start_offset == 20
    await remove(scene, 40)
    await move_time(raw, 9_000)
    while await scene.store.housekeeping.prune_removed_extents(100):
        pass
    assert await rows(raw, "SELECT FROM removed_extents") == []
    assert (await move_back(scene)).log_start_offset == 40
    assert await unaccounted(raw) == []


@pytest.mark.slow
async def test_a_cluster_that_deletes_at_once_keeps_nothing(scene: Scene, raw: Session) -> None:
    await set_for_cluster(scene.store, DELAY, 0)
    await remove(scene, 20)
    assert await rows(raw, "SELECT FROM removed_extents") == []
    assert await unaccounted(raw) == []
    assert (await move_back(scene)).log_start_offset == 20


async def test_aborted_transactions_come_back_aborted(metastore: PostgresMetastore, raw: Session) -> None:
    """A restore without them would show aborted records to read_committed readers."""
    producer = await open_transactions(metastore, 1)
    await keep_files(producer.scene)
    await producer.send(0)
    await producer.end(commits=False)
    await producer.scene.outcomes(batch(producer.scene.keys[0]))
    before = await read(producer.scene)
    await remove(producer.scene, -1)
    assert (await read(producer.scene)).aborted == []
    await move_back(producer.scene)
    after = await read(producer.scene)
    assert after == before
    assert aborts(after) == [(before.aborted[0].producer_id, 0, 5)]
    await remove(producer.scene, -1)
    await move_time(raw, 3_660)
    await metastore.housekeeping.prune_removed_extents(10)
    assert await rows(raw, "SELECT FROM aborted_transactions") == []


@pytest.mark.slow
async def test_times_are_found_again(metastore: PostgresMetastore, raw: Session) -> None:
    """The time blocks of removed extents come back with them; enough extents that there are some."""
    scene = await open_scene(metastore)
    await keep_files(scene)
    (key,) = scene.keys
    for first in range(0, 300, 100):
        times = range(1_000 + first, 1_100 + first)
        await scene.commit(*(file_of([batch(key, records=1, max_timestamp=time)]) for time in times))
    blocks = await rows(raw, "SELECT * FROM time_blocks ORDER BY level, last_offset")
    assert blocks
    queries = [OffsetQuery(key, stamp) for stamp in (1_000, 1_050, 1_150, 1_299, OffsetKind.MAX_TIMESTAMP)]
    before = await metastore.index.list_offsets(queries)
    await remove(scene, 290, most=1_000)
    assert [answer.offset for answer in await metastore.index.list_offsets(queries)] == [290, 290, 290, 299, 299]
    await move_back(scene, limit=1_000)
    assert await metastore.index.list_offsets(queries) == before
    assert await rows(raw, "SELECT * FROM time_blocks ORDER BY level, last_offset") == blocks
    assert await unaccounted(raw) == []


async def test_readers_hear_of_it(scene: Scene) -> None:
    """They drop what they know first: a log start of which they know only grows."""
    await remove(scene, 40)
    heads = (await scene.store.index.poll_feed({})).heads
    await move_back(scene, 10)
    (dropped, moved) = (await scene.store.index.poll_feed(heads)).rows
    assert (dropped.kind, dropped.deleted_keys) == (FeedKind.TOPIC_DELETED, scene.keys)
    assert (moved.kind, moved.log_starts) == (FeedKind.LOG_START, [(scene.keys[0], 10)])


async def test_refusals(scene: Scene, raw: Session) -> None:
    await remove(scene, 40)
    quiet: list[object] = []
    await raw.execute("INSERT INTO cleaned_partitions (partition_key) VALUES (%s)", scene.keys)
    with pytest.raises(NotFoundError, match="partition 0: it is compacted by key"):
        await restore_removed(scene.store.topics, {scene.keys[0]: 0}, lambda *progress: quiet.append(progress))
    await raw.execute("DELETE FROM cleaned_partitions")
    await raw.execute("UPDATE partitions SET state = 1")
    assert (await move_back(scene)).outcome is RestoreOutcome.MARKED
    await delete_restorably(scene)
    assert (await move_back(scene)).outcome is RestoreOutcome.GONE
    (removed,) = await scene.store.topics.removed_records(scene.keys, extents_max=10)
    assert removed.outcome is RestoreOutcome.GONE
    assert quiet == []


async def test_records_removed_before_a_deletion_come_back_after_the_topic(scene: Scene, raw: Session) -> None:
    before = await rows_of(raw, scene)
    await remove(scene, 20)
    await delete_and_purge(scene)
    await restore(scene)
    assert await start_of(scene) == 20
    await move_back(scene)
    assert await rows_of(raw, scene) == before
