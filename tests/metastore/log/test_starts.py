"""Log starts that move: in chunks, while commits wait for none of it, and times found behind them."""

from __future__ import annotations

import asyncio

import pytest

from headrace.metastore.api.read import FeedKind, OffsetQuery
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError
from tests.metastore.byte_sums import unaccounted
from tests.metastore.commit_scenes import batch, file_of, open_scene, shard_gate
from tests.metastore.sessions import Session, rows, set_for_cluster, waiting

EXTENTS = 300
"""Several closed time blocks."""


async def test_a_long_removal_goes_in_chunks_and_commits_go_on_in_between(
    metastore: PostgresMetastore, raw: Session
) -> None:
    await set_for_cluster(metastore, "file.delete.delay.ms", 0)  # nothing is kept for a restore
    scene = await open_scene(metastore, partitions=2)
    a, b = scene.keys
    alternating = [item for n in range(EXTENTS) for item in (batch(a, records=1, max_timestamp=n), batch(b))]
    for first in range(0, len(alternating), 60):
        await scene.commit(file_of(alternating[first : first + 60]))
    removed, calls = 0, 0
    assert (await rows(raw, "SELECT count(*) > 2 FROM time_blocks WHERE partition_key = %s", a))[0][0]
    while True:
        (answer,) = await metastore.retention.move_log_starts([LogStartTarget(a, 250)], max_extents=40)
        removed, calls = removed + answer.removed_extents, calls + 1
        assert answer.log_start_offset == 250
        assert (await scene.read(0))[0] == (250, 250), "what is left below is invisible from the first call on"
        assert await unaccounted(raw) == []
        if not answer.has_more:
            break
        await scene.commit(file_of([batch(a, records=1, max_timestamp=EXTENTS + calls)]))
    assert (removed, calls) == (250, 7)
    blocks = await rows(raw, "SELECT min(last_offset) FROM time_blocks WHERE partition_key = %s", a)
    assert blocks[0][0] >= 250
    stamps = [0, 100, 249, 250, 280, EXTENTS + 3]
    found = await metastore.index.list_offsets([OffsetQuery(a, stamp) for stamp in stamps])
    assert [answer.offset for answer in found] == [250, 250, 250, 250, 280, EXTENTS + 2]


async def test_a_move_is_announced_once_and_in_the_order_of_the_offsets(metastore: PostgresMetastore) -> None:
    scene = await open_scene(metastore)
    (key,) = scene.keys
    await scene.commit(file_of([batch(key, records=100)]))
    shard = scene.shard(0)
    before = (await metastore.index.poll_feed({})).heads
    for offset in (10, 10, 5, 101, 30, -1):
        await metastore.retention.move_log_starts([LogStartTarget(key, offset)], max_extents=10)
    told = (await metastore.index.poll_feed({shard: before[shard]})).rows
    assert {row.kind for row in told} == {FeedKind.LOG_START}
    assert [row.log_starts[0].log_start_offset for row in told] == [10, 30, 100]


async def test_commits_do_not_wait_for_what_a_move_holds(metastore: PostgresMetastore, raw: Session) -> None:
    """The partition's row and the file's row: only the feed's numbering is shared."""
    scene = await open_scene(metastore)
    (key,) = scene.keys
    await scene.commit(file_of([batch(key)]))
    async with raw.transaction():
        await rows(raw, "SELECT 1 FROM partitions WHERE partition_key = %s FOR NO KEY UPDATE", key)
        await rows(raw, "SELECT 1 FROM segment_files FOR NO KEY UPDATE")
        (answer,) = await asyncio.wait_for(scene.commit(file_of([batch(key)])), 600)
    assert [outcome.base_offset for outcome in answer.batches] == [5]


async def test_a_move_that_waits_for_a_slow_commit_delays_no_other(
    metastore: PostgresMetastore, metastore_url: str, raw: Session
) -> None:
    scene = await open_scene(metastore, partitions=2)
    a, b = scene.keys
    assert scene.shard(0) != scene.shard(1)
    await scene.commit(file_of([batch(a), batch(b)]))
    async with shard_gate(metastore_url, scene.shard(0)):
        moving = asyncio.create_task(metastore.retention.move_log_starts([LogStartTarget(a, -1)], max_extents=10))
        await waiting(raw, 1)
        await asyncio.wait_for(scene.commit(file_of([batch(b)])), 600)
        assert await scene.read(0) == [(0, 4)], "all of it or nothing"
    (answer,) = await moving
    assert answer.log_start_offset == 5
    assert await scene.read(0) == []


async def test_a_partition_is_named_once(metastore: PostgresMetastore) -> None:
    scene = await open_scene(metastore)
    twice = [LogStartTarget(scene.keys[0], 0)] * 2
    with pytest.raises(InvalidError):
        await metastore.retention.move_log_starts(twice, max_extents=1)
    assert await metastore.retention.move_log_starts([], max_extents=1) == []
