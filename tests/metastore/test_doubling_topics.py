"""A topic doubles in the store: one transaction, boundaries, groups, and a second doubling."""

from __future__ import annotations

import pytest

from headrace.metastore.api.commit import BatchOutcome, MovedKeys
from headrace.metastore.api.controller import ControllerLease
from headrace.metastore.api.splits import Doubling, QuietSplit
from headrace.metastore.log.image import TopicImage
from headrace.metastore.log.loading import load_image
from headrace.metastore.partitions.changes import Expansion, change_count
from headrace.metastore.partitions.topic_partitions import Split
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError, HeadraceError
from tests.metastore.commit_scenes import Scene, appended, batch, open_scene
from tests.metastore.sessions import move_time, rows, session

pytestmark = pytest.mark.requirement("X5")
PRODUCER_QUIET_MS, BOUNDARY_QUIET_MS = 2_000, 60_000


@pytest.fixture
async def scene(metastore: PostgresMetastore) -> Scene:
    """A topic of two partitions."""
    return await open_scene(metastore, partitions=2)


async def _topic(scene: Scene) -> TopicImage:
    return (await load_image(scene.store)).topics_by_id[scene.topic.topic_id]


async def _double(scene: Scene) -> TopicImage:
    head, partitions = await scene.store.metadata_head(), (await _topic(scene)).ordered_partitions
    change = change_count(partitions, 2 * partitions.undeleted)
    assert isinstance(change, Expansion)
    doubling = Doubling(
        scene.topic.topic_id, partitions.initial, partitions.undeleted, change, PRODUCER_QUIET_MS, BOUNDARY_QUIET_MS
    )
    assert not await scene.store.double_topic(head - 1, doubling)
    assert await scene.store.double_topic(head, doubling)
    topic = await _topic(scene)
    scene.keys[:] = [key for index in topic.indexes if (key := topic.key(index)) is not None]
    return topic


async def test_a_doubling_splits_each_partition_and_commits_go_by_it(scene: Scene) -> None:
    assert await scene.outcomes(batch(scene.keys[0], 0), batch(scene.keys[1], 0)) == appended(0, 0)
    topic = await _double(scene)
    assert topic.undeleted_partition_count == 4
    assert topic.splits == {0: Split(2), 1: Split(3)}
    epoch = topic.leader_epochs[0]
    stale = batch(scene.keys[0], 5, leader_epoch=epoch - 1, partition_count=int(MovedKeys.MOVED))
    assert await scene.outcomes(stale) == [(BatchOutcome.LEADER_EPOCH_MISMATCH, -1)], "this sends its client back, too"
    moved = stale._replace(leader_epoch=epoch)
    fresh = moved._replace(producer_id=2_000, base_sequence=0)
    assert await scene.outcomes(fresh) == [(BatchOutcome.SENT_BACK, -1)]
    assert await scene.outcomes(moved, batch(scene.keys[2], 0)) == [*appended(5), (BatchOutcome.SENT_BACK, -1)]
    assert await scene.outcomes(batch(scene.keys[0], 0)) == [(BatchOutcome.DUPLICATE, 0)]


async def test_a_boundary_is_set_when_no_moved_key_came_for_a_time(scene: Scene, metastore_url: str) -> None:
    store, epoch = scene.store, await _controller_epoch(scene)
    await _double(scene)
    assert await store.quiet_splits(9) == []
    async with session(metastore_url) as raw:
        await move_time(raw, BOUNDARY_QUIET_MS / 1_000)
    await scene.outcomes(batch(scene.keys[0], partition_count=int(MovedKeys.STAY)))
    first, second = await store.quiet_splits(9)
    assert (first.parent_key, first.child_key, first.high_watermark) == (scene.keys[0], scene.keys[2], 5)
    with pytest.raises(FencedError):
        await store.set_split_boundary(epoch - 1, await store.metadata_head(), first)
    assert not await store.set_split_boundary(epoch, await store.metadata_head() - 1, first)
    assert await store.set_split_boundary(epoch, await store.metadata_head(), first)
    assert (await _topic(scene)).splits == {0: Split(2, 5), 1: Split(3)}
    assert not await store.set_split_boundary(epoch, await store.metadata_head(), first), "it is set once"
    moved = batch(scene.keys[0], partition_count=int(MovedKeys.MOVED))
    assert await scene.outcomes(moved) == [(BatchOutcome.MOVED_KEY, -1)]
    assert await store.quiet_splits(9) == [second]


async def test_a_moved_key_that_comes_in_between_puts_the_boundary_off(scene: Scene, metastore_url: str) -> None:
    store, epoch = scene.store, await _controller_epoch(scene)
    await _double(scene)
    async with session(metastore_url) as raw:
        await move_time(raw, BOUNDARY_QUIET_MS / 1_000)
    (due, _) = await store.quiet_splits(9)
    assert await scene.outcomes(batch(scene.keys[0], partition_count=int(MovedKeys.MOVED))) == appended(0)
    assert not await store.set_split_boundary(epoch, await store.metadata_head(), due)
    assert [split.parent_key for split in await store.quiet_splits(9)] == [scene.keys[1]]


async def test_a_group_begins_a_child_at_its_start(scene: Scene, metastore_url: str) -> None:
    await scene.outcomes(batch(scene.keys[0]))
    async with session(metastore_url) as raw:
        await raw.execute(
            "INSERT INTO group_offsets VALUES ('g', %s, 5, -1, '', now()), ('h', %s, 0, -1, '', now())",
            (scene.keys[0], scene.keys[1]),
        )
        await _double(scene)
        found = await rows(raw, "SELECT group_id, partition_key, committed_offset FROM group_offsets ORDER BY 1, 2")
    parent, other, child, others_child = scene.keys
    assert found == [("g", parent, 5), ("g", child, 0), ("h", other, 0), ("h", others_child, 0)]


async def test_a_second_doubling_waits_for_the_boundaries_of_the_first(scene: Scene, metastore_url: str) -> None:
    store, epoch = scene.store, await _controller_epoch(scene)
    await _double(scene)
    with pytest.raises(HeadraceError, match="last doubling is not over"):
        await _double(scene)
    async with session(metastore_url) as raw:
        await move_time(raw, BOUNDARY_QUIET_MS / 1_000)
    for split in await store.quiet_splits(9):
        assert isinstance(split, QuietSplit)
        assert await store.set_split_boundary(epoch, await store.metadata_head(), split)
    topic = await _double(scene)
    assert topic.splits == {parent: Split(parent + 4) for parent in range(4)}
    assert await scene.outcomes(batch(scene.keys[2], 0, partition_count=int(MovedKeys.STAY))) == appended(0)


async def _controller_epoch(scene: Scene) -> int:
    lease: ControllerLease = await scene.store.hold_controller_lease(
        scene.agent.node_id, scene.topic.topic_id, 1_000_000
    )
    return lease.controller_epoch


async def test_a_deleted_topic_leaves_nothing_of_its_doubling(scene: Scene, metastore_url: str) -> None:
    topic = await _double(scene)
    assert await scene.outcomes(batch(scene.keys[2], 0)) == [(BatchOutcome.SENT_BACK, -1)]
    head = await scene.store.metadata_head()
    assert await scene.store.delete_topics(head, [topic.topic_id])
    async with session(metastore_url) as raw:
        for table in ("partition_splits", "split_producers"):
            assert await rows(raw, f"SELECT * FROM {table}") == []
