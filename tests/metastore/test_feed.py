"""The commit feed: order, gaps, what is lost, and what every kind of row says."""

from __future__ import annotations

import pytest

from headrace.metastore.api.read import FeedKind, LogStartMove
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.commit_scenes import Scene, batch, file_of, open_scene
from tests.metastore.sessions import Session, delete, move_time, rows

TICK_SECONDS = 30
"""Seconds of one slot of the feed."""


@pytest.fixture
async def scene(metastore: PostgresMetastore) -> Scene:
    """A topic with a partition in every shard."""
    return await open_scene(metastore, partitions=8)


async def test_a_first_poll_answers_where_every_shard_is(scene: Scene) -> None:
    await scene.commit(file_of([batch(scene.keys[2])]))
    page = await scene.store.index.poll_feed({})
    assert page.heads == {shard: int(shard == scene.shard(2)) for shard in range(8)}
    assert (page.rows, page.lost_shards) == ([], [])
    assert page.incarnation_id == scene.store.incarnation_id
    assert page.metadata_offset == await scene.store.cluster.metadata_head()


@pytest.mark.requirement("W5")
async def test_a_row_carries_what_a_commit_appended_to_its_shard(scene: Scene) -> None:
    before = await scene.store.index.poll_feed({})
    file = file_of([batch(key, records=place + 1) for place, key in enumerate(scene.keys)])
    await scene.commit(file)
    page = await scene.store.index.poll_feed(before.heads)
    assert [(row.shard, row.seq, row.kind) for row in page.rows] == [(shard, 1, FeedKind.COMMIT) for shard in range(8)]
    told = sorted(extent for row in page.rows for extent in row.extents)
    assert [(e.partition_key, e.base_offset, e.last_offset) for e in told] == [
        (key, 0, place) for place, key in enumerate(scene.keys)
    ]
    assert {extent.file_id for extent in told} == {file.file_id}
    assert all(
        row.extents and scene.shard(scene.keys.index(row.extents[0].partition_key)) == row.shard for row in page.rows
    )


async def test_a_commit_that_appends_nothing_tells_nothing(scene: Scene) -> None:
    key = scene.keys[0]
    await scene.outcomes(batch(key, 0))
    before = await scene.store.index.poll_feed({})
    await scene.outcomes(batch(key, 0), batch(1 << 50))
    page = await scene.store.index.poll_feed(before.heads)
    assert (page.heads, page.rows) == (before.heads, [])


async def test_a_page_holds_sixty_four_rows_of_a_shard_and_the_next_page_goes_on(scene: Scene) -> None:
    shard = scene.shard(0)
    for _ in range(100):
        await scene.commit(file_of([batch(scene.keys[0])]))
    first = await scene.store.index.poll_feed({shard: 0})
    second = await scene.store.index.poll_feed({shard: first.rows[-1].seq})
    assert [row.seq for row in (*first.rows, *second.rows)] == list(range(1, 101))
    assert len(first.rows) == 64
    assert first.heads[shard] == 100
    assert not first.lost_shards
    assert not second.lost_shards


async def test_every_kind_of_row_is_understood(scene: Scene, raw: Session) -> None:
    key, shard = scene.keys[0], scene.shard(0)
    await scene.commit(file_of([batch(key)]))
    (stored,) = (await scene.store.index.poll_feed({shard: 0})).rows[0].extents
    await rows(raw, "SELECT append_feed(%s, 1::smallint, int8send(%s) || int8send(3::bigint))", shard, key)
    await rows(raw, "SELECT append_feed(%s, 2::smallint, payload) FROM commit_log WHERE seq = 1", shard)
    await delete(scene.store, scene.topic.topic_id)
    page = await scene.store.index.poll_feed({shard: 1})
    moved, swapped, deleted = page.rows
    assert (moved.kind, moved.log_starts) == (FeedKind.LOG_START, [LogStartMove(key, 3)])
    assert (swapped.kind, swapped.extents) == (FeedKind.SWAP, [stored])
    assert (deleted.kind, deleted.deleted_keys) == (FeedKind.TOPIC_DELETED, [key])


async def test_rows_are_kept_two_minutes_and_a_later_reader_has_lost_its_shard(scene: Scene, raw: Session) -> None:
    shard = scene.shard(0)
    await scene.commit(file_of([batch(scene.keys[0])]))
    await move_time(raw, 4 * TICK_SECONDS)
    await _rotate_all(scene)
    assert [row.seq for row in (await scene.store.index.poll_feed({shard: 0})).rows] == [1]
    await move_time(raw, 6 * TICK_SECONDS)
    await _rotate_all(scene)
    page = await scene.store.index.poll_feed({shard: 0})
    assert (page.rows, page.lost_shards, page.heads[shard]) == ([], [shard], 1)
    assert not (await scene.store.index.poll_feed(page.heads)).lost_shards


async def test_a_feed_that_went_back_is_lost(scene: Scene) -> None:
    page = await scene.store.index.poll_feed(dict.fromkeys(range(8), 5))
    assert page.lost_shards == list(range(8))


async def test_a_shard_that_the_cluster_lacks_is_lost(scene: Scene) -> None:
    """A standby that was promoted before the count grew has none of the new shards."""
    page = await scene.store.index.poll_feed({0: 0, 8: 0})
    assert (page.lost_shards, page.heads.keys()) == ([8], set(range(8)))


async def test_rows_behind_a_gap_wait_until_the_gap_is_first(scene: Scene, raw: Session) -> None:
    """Slots are emptied whole; a reader between two of them must not jump over what is missing."""
    shard = scene.shard(0)
    for _ in range(5):
        await scene.commit(file_of([batch(scene.keys[0])]))
    await raw.execute("DELETE FROM commit_log WHERE shard = %s AND seq = 3", (shard,))
    first = await scene.store.index.poll_feed({shard: 0})
    assert ([row.seq for row in first.rows], first.lost_shards) == ([1, 2], [])
    second = await scene.store.index.poll_feed({shard: 2})
    assert (second.rows, second.lost_shards) == ([], [shard])


async def test_commits_go_on_when_no_agent_empties_slots(scene: Scene, raw: Session) -> None:
    """Two turns of all slots without housekeeping: old rows stay next to new ones and are harmless."""
    shard = scene.shard(0)
    seqs = []
    for turn in range(20):
        await move_time(raw, turn * TICK_SECONDS)
        await scene.commit(file_of([batch(scene.keys[0])], age_ms=-turn * TICK_SECONDS * 1_000))
        seqs += [row.seq for row in (await scene.store.index.poll_feed({shard: turn})).rows]
    await _rotate_all(scene)
    assert seqs == list(range(1, 21))
    assert [row.seq for row in (await scene.store.index.poll_feed({shard: 19})).rows] == [20]


async def test_slots_in_use_are_never_emptied(scene: Scene, raw: Session) -> None:
    """At each tick of a day, what is emptied is at least four ticks old and not needed for one more."""
    for tick in range(40):
        await move_time(raw, tick * 900)
        (now,) = (await rows(raw, "SELECT wall_ms() / 900000"))[0]
        while emptied := await scene.store.housekeeping.rotate_log_slots():
            log, slot = emptied.rsplit("_", 1)
            ahead = (int(slot) - now) % 8
            assert log == "commit_log" or ahead in (2, 3)


async def _rotate_all(scene: Scene) -> None:
    while await scene.store.housekeeping.rotate_log_slots():
        pass
