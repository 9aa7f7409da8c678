"""A topic doubles in the store: one transaction, boundaries, groups, and a second doubling."""

from __future__ import annotations

import pytest

from headrace.metastore.api.commit import BatchOutcome, MovedKeys
from headrace.metastore.api.controller import ControllerLease
from headrace.metastore.api.groups import GroupKind, ParentPosition
from headrace.metastore.api.topics import CountChange, Doubling, QuietSplit
from headrace.metastore.log.image import TopicImage
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.partitions.changes import Expansion, Shrinking, change_count
from headrace.metastore.partitions.topic_partitions import Split
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError, HeadraceError
from tests.metastore.commit_scenes import Scene, appended, batch, open_scene
from tests.metastore.sessions import Session, move_time, rows

pytestmark = pytest.mark.requirement("X5")
PRODUCER_QUIET_MS, BOUNDARY_QUIET_MS = 2_000, 60_000


@pytest.fixture
async def scene(metastore: PostgresMetastore) -> Scene:
    """A topic of two partitions."""
    return await open_scene(metastore, partitions=2)


async def _topic(scene: Scene) -> TopicImage:
    return (await load_image(scene.store.cluster)).topics_by_id[scene.topic.topic_id]


async def _double(scene: Scene) -> TopicImage:
    head, partitions = await scene.store.cluster.metadata_head(), (await _topic(scene)).ordered_partitions
    change = change_count(partitions, 2 * partitions.undeleted)
    assert isinstance(change, Expansion)
    doubling = Doubling(
        scene.topic.topic_id, partitions.initial, partitions.undeleted, change, PRODUCER_QUIET_MS, BOUNDARY_QUIET_MS
    )
    assert not await scene.store.topics.double_topic(head - 1, doubling)
    assert await scene.store.topics.double_topic(head, doubling)
    topic = await _topic(scene)
    scene.keys[:] = [key for index in topic.indexes if (key := topic.key(index)) is not None]
    return topic


async def test_a_doubling_splits_each_partition_and_commits_go_by_it(scene: Scene) -> None:
    assert await scene.outcomes(batch(scene.keys[0], 0), batch(scene.keys[1], 0)) == appended(0, 0)
    topic = await _double(scene)
    assert topic.undeleted_partition_count == 4
    assert topic.splits == {0: Split(2), 1: Split(3)}
    epoch = topic.leader_epochs[0]
    stale = batch(scene.keys[0], 5, leader_epoch=epoch - 1, keys=int(MovedKeys.MOVED))
    assert await scene.outcomes(stale) == [(BatchOutcome.LEADER_EPOCH_MISMATCH, -1)], "this sends its client back, too"
    moved = stale._replace(leader_epoch=epoch)
    fresh = moved._replace(producer_id=2_000, base_sequence=0)
    assert await scene.outcomes(fresh) == [(BatchOutcome.SENT_BACK, -1)]
    assert await scene.outcomes(moved, batch(scene.keys[2], 0)) == [*appended(5), (BatchOutcome.SENT_BACK, -1)]
    assert await scene.outcomes(batch(scene.keys[0], 0)) == [(BatchOutcome.DUPLICATE, 0)]


async def test_a_boundary_is_set_when_no_moved_key_came_for_a_time(scene: Scene, raw: Session) -> None:
    store, epoch = scene.store, await _controller_epoch(scene)
    await _double(scene)
    assert await store.topics.quiet_splits(9) == []
    await move_time(raw, BOUNDARY_QUIET_MS / 1_000)
    await scene.outcomes(batch(scene.keys[0], keys=int(MovedKeys.STAY)))
    first, second = await store.topics.quiet_splits(9)
    assert (first.parent_key, first.child_key, first.high_watermark) == (scene.keys[0], scene.keys[2], 5)
    with pytest.raises(FencedError):
        await store.topics.set_split_boundary(epoch - 1, await store.cluster.metadata_head(), first)
    assert not await store.topics.set_split_boundary(epoch, await store.cluster.metadata_head() - 1, first)
    assert await store.topics.set_split_boundary(epoch, await store.cluster.metadata_head(), first)
    assert (await _topic(scene)).splits == {0: Split(2, 5), 1: Split(3)}
    assert not await store.topics.set_split_boundary(epoch, await store.cluster.metadata_head(), first), (
        "it is set once"
    )
    moved = batch(scene.keys[0], keys=int(MovedKeys.MOVED))
    assert await scene.outcomes(moved) == [(BatchOutcome.MOVED_KEY, -1)]
    assert await store.topics.quiet_splits(9) == [second]


async def test_a_moved_key_that_comes_in_between_puts_the_boundary_off(scene: Scene, raw: Session) -> None:
    store, epoch = scene.store, await _controller_epoch(scene)
    await _double(scene)
    await move_time(raw, BOUNDARY_QUIET_MS / 1_000)
    (due, _) = await store.topics.quiet_splits(9)
    assert await scene.outcomes(batch(scene.keys[0], keys=int(MovedKeys.MOVED))) == appended(0)
    assert not await store.topics.set_split_boundary(epoch, await store.cluster.metadata_head(), due)
    assert [split.parent_key for split in await store.topics.quiet_splits(9)] == [scene.keys[1]]


async def test_a_group_begins_a_child_at_its_start(scene: Scene, raw: Session) -> None:
    await scene.outcomes(batch(scene.keys[0]))
    await raw.execute(
        "INSERT INTO group_offsets VALUES ('g', %s, 5, -1, '', now()), ('h', %s, 0, -1, '', now())",
        (scene.keys[0], scene.keys[1]),
    )
    await _double(scene)
    found = await rows(raw, "SELECT group_id, partition_key, committed_offset FROM group_offsets ORDER BY 1, 2")
    parent, other, child, others_child = scene.keys
    assert found == [("g", parent, 5), ("g", child, 0), ("h", other, 0), ("h", others_child, 0)]


async def test_a_group_that_begins_before_the_boundary_begins_the_child_at_its_start_too(
    scene: Scene, raw: Session
) -> None:
    store, epoch = scene.store, await _controller_epoch(scene)
    await _double(scene)
    parent, child = scene.keys[0], scene.keys[2]
    await move_time(raw, BOUNDARY_QUIET_MS / 1_000)
    await raw.execute(
        "INSERT INTO group_offsets VALUES ('new', %s, 0, -1, '', now()), ('has', %s, 0, -1, '', now())",
        (parent, parent),
    )
    await raw.execute("INSERT INTO group_offsets VALUES ('has', %s, 7, -1, '', now())", (child,))
    await raw.execute("UPDATE partition_splits SET child_start = 3 WHERE child_key = %s", (child,))
    for split in await store.topics.quiet_splits(9):
        assert await store.topics.set_split_boundary(epoch, await store.cluster.metadata_head(), split)
    await raw.execute("INSERT INTO group_offsets VALUES ('late', %s, 0, -1, '', now())", (parent,))
    found = await rows(raw, f"SELECT group_id, committed_offset FROM group_offsets WHERE partition_key = {child}")
    assert sorted(found) == [("has", 7), ("new", 3)]


async def test_where_a_group_is_in_parents(scene: Scene, raw: Session) -> None:
    await _double(scene)
    await raw.execute("INSERT INTO group_offsets VALUES ('g', %s, 4, -1, '', now())", (scene.keys[0],))
    await raw.execute("UPDATE partitions SET log_start_offset = 9 WHERE partition_key = %s", (scene.keys[1],))
    one, other = scene.keys[:2]
    asked = [other, one, 1 << 50]
    assert await scene.store.groups.parent_positions("g", asked) == [
        ParentPosition(one, 0, 4),
        ParentPosition(other, 9, None),
    ]
    assert await scene.store.groups.parent_positions("h", [one]) == [ParentPosition(one, 0, None)]


async def test_a_second_doubling_waits_for_the_boundaries_of_the_first(scene: Scene, raw: Session) -> None:
    store, epoch = scene.store, await _controller_epoch(scene)
    await _double(scene)
    with pytest.raises(HeadraceError, match="last doubling is not over"):
        await _double(scene)
    await move_time(raw, BOUNDARY_QUIET_MS / 1_000)
    for split in await store.topics.quiet_splits(9):
        assert isinstance(split, QuietSplit)
        assert await store.topics.set_split_boundary(epoch, await store.cluster.metadata_head(), split)
    topic = await _double(scene)
    assert topic.splits == {parent: Split(parent + 4) for parent in range(4)}
    assert await scene.outcomes(batch(scene.keys[2], 0, keys=int(MovedKeys.STAY))) == appended(0)


async def test_another_change_of_the_count_ends_a_doubling(scene: Scene, raw: Session) -> None:
    store, epoch, topic = scene.store, await _controller_epoch(scene), await _double(scene)
    grown = CountChange(topic.topic_id, 2, _change(topic, 5))
    with pytest.raises(HeadraceError, match="last doubling is not over"):
        await store.topics.change_partition_counts(await store.cluster.metadata_head(), [grown])
    await move_time(raw, BOUNDARY_QUIET_MS / 1_000)
    for split in await store.topics.quiet_splits(9):
        assert await store.topics.set_split_boundary(epoch, await store.cluster.metadata_head(), split)
    assert await store.topics.change_partition_counts(await store.cluster.metadata_head(), [grown])
    assert await rows(raw, "SELECT * FROM partition_splits") == []
    topic = await _topic(scene)
    assert (topic.undeleted_partition_count, topic.splits) == (5, {})
    assert await scene.outcomes(batch(scene.keys[2], 0), batch(scene.keys[0], 0)) == appended(0, 0)
    assert await store.topics.change_partition_counts(
        await store.cluster.metadata_head(), [CountChange(topic.topic_id, 2, _change(topic, 3))]
    )
    assert (await _topic(scene)).marked == [3, 4]


async def test_who_reads_a_topic(scene: Scene, raw: Session) -> None:
    store, epoch, topic = scene.store, await _controller_epoch(scene), await _double(scene)
    await scene.outcomes(batch(scene.keys[0], keys=int(MovedKeys.STAY)))
    await raw.execute(
        "INSERT INTO group_offsets VALUES ('alone', %s, 4, -1, '', now()), ('all', %s, 5, -1, '', now())",
        (scene.keys[0], scene.keys[0]),
    )
    await raw.execute(
        "INSERT INTO share_partitions VALUES ('workers', %s, 0, '', 6, 1), ('others', %s, 0, '', 8, 1)",
        (scene.keys[0], scene.keys[0] + (1 << 24)),
    )
    await raw.execute(
        "INSERT INTO consumer_groups (group_id, coordinator_epoch, node_id, saved, kind, state, subscribed)"
        " VALUES ('all', 1, 1, 'x', 'consumer', 'Empty', NULL), ('new', 2, 1, 'x', 'consumer', 'Stable', %s),"
        " ('old', 3, 1, 'x', 'classic', 'Stable', %s), ('empty', 4, 1, 'x', 'classic', 'Empty', %s),"
        " ('elsewhere', 5, 1, 'x', 'classic', 'Stable', '{x}'), ('workers', 6, 1, 'x', 'share', 'Empty', NULL)",
        ([topic.name], [topic.name], [topic.name]),
    )
    assert [(r.group_id, r.kind, r.late) for r in await store.topics.topic_readers(topic.topic_id)] == [
        ("all", GroupKind.CONSUMER, 0),
        ("alone", None, 0),
        ("new", GroupKind.CONSUMER, 0),
        ("old", GroupKind.CLASSIC, 0),
        ("workers", GroupKind.SHARE, 0),
    ]
    await move_time(raw, BOUNDARY_QUIET_MS / 1_000)
    for split in await store.topics.quiet_splits(9):
        assert await store.topics.set_split_boundary(epoch, await store.cluster.metadata_head(), split)
    late = {reader.group_id: (reader.state, reader.late) for reader in await store.topics.topic_readers(topic.topic_id)}
    share = {"workers": ("Empty", 0)}
    assert late == {"all": ("Empty", 0), "alone": ("Empty", 1), "new": ("Stable", 1), "old": ("Stable", 1)} | share


async def test_agents_that_have_not_followed(scene: Scene) -> None:
    store, agent, head = scene.store, scene.agent, await scene.store.cluster.metadata_head()
    assert await store.topics.agents_behind(head) == [agent.node_id]
    await store.cluster.heartbeat(
        agent.node_id,
        agent.broker_epoch,
        metadata_offset=head,
        want_fence=False,
        want_shut_down=False,
        session_timeout_ms=9_000,
    )
    assert (await store.topics.agents_behind(head), await store.topics.agents_behind(head + 1)) == ([], [agent.node_id])


def _change(topic: TopicImage, count: int) -> Expansion | Shrinking:
    change = change_count(topic.ordered_partitions, count)
    assert change is not None
    return change


async def _controller_epoch(scene: Scene) -> int:
    lease: ControllerLease = await scene.store.controller.hold_controller_lease(
        scene.agent.node_id, scene.topic.topic_id, 1_000_000
    )
    return lease.controller_epoch


async def test_a_deleted_topic_leaves_nothing_of_its_doubling(scene: Scene, raw: Session) -> None:
    topic = await _double(scene)
    assert await scene.outcomes(batch(scene.keys[2], 0)) == [(BatchOutcome.SENT_BACK, -1)]
    head = await scene.store.cluster.metadata_head()
    assert await scene.store.topics.delete_topics(head, [topic.topic_id])
    for table in ("partition_splits", "split_producers"):
        assert await rows(raw, f"SELECT * FROM {table}") == []
