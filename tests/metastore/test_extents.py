"""Check where data is: what find_extents and list_offsets answer at the edges."""

from __future__ import annotations

import random

import pytest

from headrace.metastore.api.commit import StagedBatch
from headrace.metastore.api.read import Extent, ExtentQuery, OffsetKind, OffsetQuery
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.commit_scenes import BATCH_BYTES, Scene, batch, file_of, open_scene
from tests.metastore.sessions import Session, delete
from tests.seeds import seeds


@pytest.fixture
async def scene(metastore: PostgresMetastore) -> Scene:
    """A topic of two partitions."""
    return await open_scene(metastore, partitions=2)


def scattered(scene: Scene, *batches: StagedBatch) -> list[StagedBatch]:
    """The batches with one of the other partition behind each: every one becomes an extent."""
    return [item for pair in ((single, batch(scene.keys[1])) for single in batches) for item in pair]


async def test_extents_are_bounded_by_bytes_but_never_none(scene: Scene) -> None:
    key = scene.keys[0]
    await scene.commit(file_of(scattered(scene, *(batch(key) for _ in range(6)))))
    queries = [ExtentQuery(key, 7, size) for size in (0, 1, BATCH_BYTES, BATCH_BYTES + 1, 1 << 40)]
    found = await scene.store.index.find_extents(queries)
    assert [[extent.base_offset for extent in answer.extents] for answer in found] == [
        [5],
        [5],
        [5],
        [5, 10],
        [5, 10, 15, 20, 25],
    ]
    assert {(answer.known, answer.log_start_offset, answer.high_watermark) for answer in found} == {(True, 0, 30)}


async def test_one_answer_holds_five_hundred_extents_at_most(scene: Scene) -> None:
    key = scene.keys[0]
    await scene.commit(file_of(scattered(scene, *(batch(key, records=1) for _ in range(501)))))
    (found,) = await scene.store.index.find_extents([ExtentQuery(key, 0, 1 << 40)])
    assert [extent.base_offset for extent in found.extents] == list(range(500))


async def test_each_query_has_its_answer_in_its_place(scene: Scene) -> None:
    a, b = scene.keys
    await scene.commit(file_of([batch(a), batch(b, records=7)]))
    queries = [ExtentQuery(b, 0, 1), ExtentQuery(99 << 24, 0, 1), ExtentQuery(a, 5, 1), ExtentQuery(b, 6, 1)]
    found = await scene.store.index.find_extents(queries)
    assert [answer.partition_key for answer in found] == [query.partition_key for query in queries]
    assert [answer.known for answer in found] == [True, False, True, True]
    assert [len(answer.extents) for answer in found] == [1, 0, 0, 1]
    assert await scene.store.index.find_extents([]) == []
    assert await scene.store.index.list_offsets([]) == []


async def test_nothing_below_the_log_start_is_found(scene: Scene, raw: Session) -> None:
    key = scene.keys[0]
    await scene.commit(file_of(scattered(scene, *(batch(key, max_timestamp=stamp) for stamp in (50, 10, 20)))))
    await raw.execute("UPDATE partitions SET log_start_offset = 7 WHERE partition_key = %s", (key,))
    (found,) = await scene.store.index.find_extents([ExtentQuery(key, 0, 1 << 40)])
    assert [extent.base_offset for extent in found.extents] == [5, 10]
    kinds = [OffsetKind.EARLIEST, OffsetKind.LATEST, OffsetKind.MAX_TIMESTAMP, 0, 11, 21]
    offsets = await scene.store.index.list_offsets([OffsetQuery(key, kind) for kind in kinds])
    assert [answer.offset for answer in offsets] == [7, 15, 10, 5, 10, -1]


async def test_offsets_of_an_empty_and_of_a_deleted_partition(scene: Scene) -> None:
    queries = [OffsetQuery(scene.keys[0], kind) for kind in (*OffsetKind, 5)]
    found = await scene.store.index.list_offsets(queries)
    assert [(answer.known, answer.offset, answer.leader_epoch, answer.extent) for answer in found] == [
        (True, 0, 0, None),
        (True, 0, 0, None),
        (True, -1, -1, None),
        (True, 0, 0, None),
        (True, -1, -1, None),
    ]
    await delete(scene.store, scene.topic.topic_id)
    assert {answer.known for answer in await scene.store.index.list_offsets(queries)} == {False}


async def test_epochs_are_those_of_the_data(scene: Scene, raw: Session) -> None:
    key = scene.keys[0]
    await scene.commit(file_of([batch(key)]))
    await raw.execute("UPDATE partitions SET leader_epoch = 4")
    await scene.commit(file_of([batch(key, max_timestamp=5_000)]))
    kinds = [OffsetKind.EARLIEST, OffsetKind.LATEST, OffsetKind.MAX_TIMESTAMP, 0]
    found = await scene.store.index.list_offsets([OffsetQuery(key, kind) for kind in kinds])
    assert [answer.leader_epoch for answer in found] == [0, 4, 4, 0]


@pytest.mark.parametrize("seed", seeds(range(2), range(2, 8)))
async def test_timestamps_are_found_in_long_disorderly_histories(scene: Scene, raw: Session, seed: int) -> None:
    """Over two levels of time blocks, with wrong clocks, log starts in mid-block, and merged extents."""
    key, rng = scene.keys[0], random.Random(seed)
    stamps = [rng.choice([10**9, -1]) if rng.random() < 0.01 else n + rng.randint(0, 300) for n in range(4_500)]
    for first in range(0, len(stamps), 60):
        singles = [batch(key, records=1, max_timestamp=stamp) for stamp in stamps[first : first + 60]]
        await scene.commit(file_of(scattered(scene, *singles)))
    start = rng.randint(0, 3_000)
    await raw.execute("UPDATE partitions SET log_start_offset = %s WHERE partition_key = %s", (start, key))
    await raw.execute("DELETE FROM extents WHERE partition_key = %s AND last_offset < %s", (key, start))
    await _merge(raw, key, 3_300, 3_500)
    await _merge(raw, key, 4_200, 4_230)
    await raw.execute("DELETE FROM extents WHERE partition_key = %s AND max_timestamp = 1000000000", (key,))
    cursor = await raw.execute(
        "SELECT partition_key, base_offset, last_offset, file_id, position, length, leader_epoch, max_timestamp"
        " FROM extents WHERE partition_key = %s ORDER BY last_offset",
        (key,),
    )
    extents = [Extent(*row) for row in await cursor.fetchall()]
    highest = max(extent.max_timestamp for extent in extents)
    asked = [OffsetKind.MAX_TIMESTAMP, 0, highest, highest + 1, *(rng.randint(0, 5_000) for _ in range(60))]
    found = await scene.store.index.list_offsets([OffsetQuery(key, stamp) for stamp in asked])
    for stamp, answer in zip(asked, found, strict=True):
        wanted = highest if stamp == OffsetKind.MAX_TIMESTAMP else stamp
        assert answer.extent == next((e for e in extents if e.max_timestamp >= wanted), None), stamp


async def _merge(raw: Session, key: int, first: int, last: int) -> None:
    """Do what compaction does: one extent in the place of many."""
    await raw.execute(
        "WITH old AS (DELETE FROM extents WHERE partition_key = %(key)s"
        " AND base_offset >= %(first)s AND last_offset <= %(last)s RETURNING *)"
        " INSERT INTO extents SELECT partition_key, max(last_offset), min(base_offset), gen_random_uuid(), 0, 1, 0,"
        " max(max_timestamp) FROM old GROUP BY partition_key",
        {"key": key, "first": first, "last": last},
    )
