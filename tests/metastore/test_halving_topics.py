"""A topic halves in the store: each step one transaction, what commits get at each, and doubling again."""

from __future__ import annotations

import asyncio

import pytest

from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.topics import Halving, PartitionState
from headrace.metastore.log.snapshot import encode_snapshot, load_image, load_snapshot
from headrace.metastore.partitions.changes import Expansion, change_count, halve
from headrace.metastore.partitions.merging import MergePhase
from headrace.metastore.partitions.topic_partitions import Split
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.share_states import encode_kept
from headrace.storage.errors import FencedError, HeadraceError, InvalidError
from tests.metastore.commit_scenes import appended, batch
from tests.metastore.halving_scenes import QUIET_MS, TIMES, HalvingScene, open_halving_scene
from tests.metastore.sessions import Session, rows, session, waiting

pytestmark = pytest.mark.requirement("X5")
SENT_BACK, MOVED_KEY = (BatchOutcome.SENT_BACK, -1), (BatchOutcome.MOVED_KEY, -1)
TAKES, SPLITS, IS_CHILD, PAUSED, ALIAS, MERGES = (
    PartitionState.TAKES_RECORDS,
    PartitionState.SPLITS,
    PartitionState.IS_CHILD,
    PartitionState.PAUSED,
    PartitionState.ALIAS,
    PartitionState.MERGES,
)


@pytest.fixture
async def scene(metastore: PostgresMetastore, raw: Session) -> HalvingScene:
    """A topic that doubled from two partitions to four."""
    scene = await open_halving_scene(metastore, raw)
    await scene.double()
    return scene


async def _merged(scene: HalvingScene) -> None:
    await scene.begin()
    await scene.pause()
    assert await scene.merge()


async def test_nothing_changes_for_producers_while_children_drain(scene: HalvingScene) -> None:
    await scene.begin()
    assert (await scene.image()).halving == 2
    assert await scene.states() == [SPLITS, SPLITS, IS_CHILD, IS_CHILD]
    assert await scene.outcomes(batch(scene.keys[2], 0)) == appended(0)
    assert await scene.outcomes(scene.moved(0, 0)) == [MOVED_KEY], "as after the doubling"
    await scene.commit_offset("g", 2, 3)
    await scene.commit_offset("quick", 2, 5)
    state = await scene.state()
    assert (state.partition_count, state.shown_ms, state.times) == (2, None, TIMES)
    assert [(pair.phase, pair.lag, pair.behind) for pair in state.pairs] == [
        (MergePhase.DRAINING, 2, ["g"]),
        (MergePhase.DRAINING, 0, []),
    ]


async def test_a_paused_child_sends_batches_back_but_duplicates(scene: HalvingScene) -> None:
    await scene.begin()
    assert await scene.outcomes(batch(scene.keys[2], 0)) == appended(0)
    assert await scene.pause() == 2
    assert await scene.pause() == 0, "they are"
    assert await scene.states() == [SPLITS, SPLITS, PAUSED, PAUSED]
    assert await scene.outcomes(batch(scene.keys[2], 5)) == [SENT_BACK]
    assert await scene.outcomes(batch(scene.keys[2], 5, partition_count=4)) == [SENT_BACK]
    assert await scene.outcomes(batch(scene.keys[2], 0)) == [(BatchOutcome.DUPLICATE, 0)]
    await scene.later(TIMES.pause_most_ms)
    assert await scene.outcomes(batch(scene.keys[2], 5)) == appended(5), "also if no controller undoes the pause"
    children = [pair.child_key for pair in (await scene.state()).pairs]
    assert await scene.store.topics.resume_children(scene.controller_epoch, children) == 2
    assert await scene.states() == [SPLITS, SPLITS, IS_CHILD, IS_CHILD]
    with pytest.raises(FencedError):
        await scene.store.topics.pause_children(scene.controller_epoch - 1, children)


async def test_a_child_is_merged_when_every_group_that_counts_has_committed_its_end(scene: HalvingScene) -> None:
    await scene.outcomes(batch(scene.keys[2]))
    await scene.commit_offset("slow", 2, 4)
    await scene.commit_offset("dead", 2, 0)
    await scene.commit_offset("elsewhere", 0, 0)
    await scene.begin("dead")
    assert not await scene.merge(), "it is not paused"
    await scene.pause()
    assert not await scene.merge()
    await scene.commit_offset("slow", 2, 5)
    assert await scene.merge()
    topic = await scene.image()
    assert (topic.aliases, list(topic.listed)) == ({2: 0, 3: 1}, [0, 1, 2, 3])
    assert await scene.states() == [MERGES, MERGES, ALIAS, ALIAS]
    assert not await scene.merge(), "they are"


async def test_a_child_is_merged_when_every_share_group_has_done_its_records(scene: HalvingScene) -> None:
    await scene.outcomes(batch(scene.keys[2]))
    await scene.store_share("workers", 2, 4)
    await scene.store_share("elsewhere", 0, 0)
    await scene.store_share("ended", 2, 0)
    await scene.begin("ended")
    assert [(pair.lag, pair.behind) for pair in (await scene.state()).pairs] == [(1, ["workers"]), (0, [])]
    readers = await scene.store.topics.topic_readers(scene.topic.topic_id)
    assert [reader.group_id for reader in readers] == ["elsewhere", "ended", "workers"], "so its name is shown"
    await scene.pause()
    assert not await scene.merge()
    await scene.store_share("workers", 2, 5)
    assert await scene.merge()


async def test_a_pause_and_a_merge_wait_for_a_commit_in_progress(scene: HalvingScene, metastore_url: str) -> None:
    """It may append to the child, or judge by what the parent was."""
    await scene.begin()
    for step, index in ((scene.pause, 2), (scene.merge, 0)):
        async with session(metastore_url) as committing, session(metastore_url) as watching:
            async with committing.transaction():
                await committing.execute("SELECT lock_shards(%s::smallint[])", ([scene.shard(index)],))
                stepping = asyncio.create_task(step())
                await waiting(watching, 1)
                assert not stepping.done()
            await stepping
    assert (await scene.image()).aliases == {2: 0, 3: 1}


async def test_what_retention_removed_counts_as_committed(scene: HalvingScene) -> None:
    await scene.outcomes(batch(scene.keys[2]))
    await scene.commit_offset("slow", 2, 0)
    await scene.raw.execute("UPDATE partitions SET log_start_offset = 5 WHERE partition_key = %s", (scene.keys[2],))
    await scene.begin()
    await scene.pause()
    assert await scene.merge()


async def test_a_bulk_write_that_will_append_to_a_child_puts_the_merge_off(scene: HalvingScene) -> None:
    await scene.begin()
    await scene.pause()
    await scene.raw.execute(
        "INSERT INTO bulk_writes (writer, attempt, batch_id, chunks, next_chunk, changed_at)"
        " VALUES ('w', %s, 1, 1, 0, now())",
        (scene.topic.topic_id,),
    )
    await scene.raw.execute(
        "INSERT INTO bulk_write_chunks (attempt, chunk, staged_at, file_ids, born_ms, until_ms, sizes,"
        " body_bytes, run_file, run_key, run_position, run_length, run_records, run_time)"
        " VALUES (%s, 0, now(), '{}', '{}', '{}', '{}', '{}', '{1}', ARRAY[%s::bigint], '{0}', '{1}', '{1}', '{1}')",
        (scene.topic.topic_id, scene.keys[3]),
    )
    assert not await scene.merge()
    await scene.raw.execute("UPDATE bulk_writes SET next_chunk = 1")
    assert await scene.merge()


async def test_an_alias_appends_to_the_parent_and_knows_the_childs_duplicates(scene: HalvingScene) -> None:
    assert await scene.outcomes(batch(scene.keys[2], 0), scene.stays(0, 0)) == appended(0, 0)
    await _merged(scene)
    alias = scene.aliased(2, 0, 5)
    assert await scene.outcomes(alias, scene.stays(0, 5), scene.aliased(2, 0, 10)) == appended(5, 10, 15)
    assert await scene.outcomes(scene.aliased(2, 0, 0)) == [(BatchOutcome.DUPLICATE, 0)], "of the child's own log"
    assert await scene.outcomes(alias, scene.aliased(2, 0, 20)) == [
        (BatchOutcome.DUPLICATE, 5),
        (BatchOutcome.OUT_OF_ORDER, -1),
    ]
    assert await scene.outcomes(scene.aliased(2, 0, 0, producer=7), scene.aliased(3, 1)) == appended(20, 0)
    assert await scene.outcomes(scene.aliased(2, 0, 5, producer=7)) == appended(25)
    assert await scene.outcomes(batch(scene.keys[2], 15)) == [SENT_BACK], "its agent does not know"
    assert await scene.outcomes(scene.aliased(2, 1, 15)) == [SENT_BACK], "of another parent"
    assert (await scene.read(2), await scene.read(0)) == ([(0, 4)], [(0, 4), (5, 19), (20, 24), (25, 29)])
    owners = await rows(scene.raw, "SELECT partition_key, producer_id FROM producer_state ORDER BY 1, 2")
    assert owners == [(scene.keys[0], 1000), (scene.keys[2], 7), (scene.keys[2], 1000)]


async def test_a_producer_switches_once(scene: HalvingScene) -> None:
    await _merged(scene)
    assert await scene.outcomes(scene.aliased(2, 0, 0)) == appended(0)
    assert await scene.outcomes(scene.moved(0, 0)) == [SENT_BACK], "it has not been quiet at the child"
    assert await scene.outcomes(scene.moved(0)) == appended(5), "without a producer"
    await scene.later(QUIET_MS)
    assert await scene.outcomes(scene.moved(0, 0)) == appended(10)
    assert await scene.outcomes(scene.aliased(2, 0, 5)) == [MOVED_KEY]
    assert await scene.outcomes(scene.aliased(2, 0, 0)) == [(BatchOutcome.DUPLICATE, 0)]
    assert await scene.outcomes(scene.aliased(2, 0, 0, producer=7), scene.moved(0, 5)) == appended(15, 20)


async def test_the_lower_count_is_shown_later_and_aliases_are_not_listed(scene: HalvingScene) -> None:
    epochs = (await scene.image()).leader_epochs
    await _merged(scene)
    assert not await scene.show()
    await scene.later(TIMES.show_after_ms)
    assert await scene.show()
    assert not await scene.show(), "once"
    topic = await scene.image()
    assert (topic.undeleted_partition_count, list(topic.listed), list(topic.indexes)) == (2, [0, 1], [0, 1, 2, 3])
    assert topic.leader_epochs == (epochs[0] + 1, epochs[1] + 1, *epochs[2:])
    assert [topic.moving_child(index) for index in range(4)] == [2, 3, None, None]
    assert not topic.splits
    assert await scene.outcomes(scene.moved(0, 0)) == [SENT_BACK], "producers switch as before"
    counted = batch(scene.keys[0], 0, partition_count=4)
    assert await scene.outcomes(counted) == [(BatchOutcome.PARTITION_COUNT_MISMATCH, -1)]


async def test_a_settled_halving_leaves_aliases_only(scene: HalvingScene) -> None:
    await _merged(scene)
    assert await scene.outcomes(scene.aliased(2, 0, 0), scene.stays(0, 0)) == appended(0, 5)
    await scene.later(TIMES.show_after_ms)
    assert await scene.show()
    assert not await scene.settle()
    await scene.later(TIMES.settle_after_ms)
    assert await scene.settle()
    assert not await scene.settle(), "once"
    assert await scene.states() == [TAKES, TAKES, ALIAS, ALIAS]
    assert await scene.store.topics.halving_state(scene.topic.topic_id) is None
    topic = await scene.image()
    assert (topic.halving, topic.aliases, topic.moving_child(0)) == (-1, {2: 0, 3: 1}, None)
    assert await scene.outcomes(batch(scene.keys[0], 5), scene.aliased(2, 0, 5)) == appended(10, 15)
    for table in ("merge_producers", "partition_splits", "split_producers", "topic_halvings"):
        assert await rows(scene.raw, f"SELECT * FROM {table}") == []
    image = await load_image(scene.store.cluster)
    assert load_snapshot(encode_snapshot(image)) == image


async def test_a_halved_topic_doubles_again_with_the_logs_that_its_children_had(scene: HalvingScene) -> None:
    assert await scene.outcomes(batch(scene.keys[2], 0), scene.stays(0)) == appended(0, 0)
    await scene.commit_offset("old", 2, 5)
    await scene.commit_offset("old", 0, 5)
    await scene.commit_offset("new", 0, 0)
    for index in (0, 2):
        await scene.store_share("old workers", index, 5)
    await scene.store_share("new workers", 0, 0)
    await scene.halve()
    assert await scene.outcomes(scene.aliased(2, 0, 5)) == appended(5)
    with pytest.raises(InvalidError, match="only doubles"):
        change_count((await scene.image()).ordered_partitions, 3)
    topic = await scene.double()
    assert (topic.aliases, topic.undeleted_partition_count) == ({}, 4)
    assert {parent: split.child for parent, split in topic.splits.items()} == {0: 2, 1: 3}
    assert await scene.states() == [SPLITS, SPLITS, IS_CHILD, IS_CHILD]
    assert await scene.outcomes(batch(scene.keys[2], 10)) == appended(5), "its producer's sequences go on"
    found = await rows(
        scene.raw, "SELECT group_id, committed_offset FROM group_offsets WHERE partition_key = %s", scene.keys[2]
    )
    assert sorted(found) == [("new", 5), ("old", 5)], "what the child had is older than what the parent got"
    loaded = [await scene.store.groups.load_share_partitions(f"{which} workers") for which in ("old", "new")]
    starts = [{each.partition_key: each.start_offset for each in rows_of_group} for rows_of_group in loaded]
    assert starts == [{scene.keys[0]: 5, scene.keys[2]: 5}, {scene.keys[0]: 0, scene.keys[2]: 5}]
    assert loaded[1][-1].kept == encode_kept(())
    assert await rows(scene.raw, "SELECT * FROM partition_merges") == []
    for group, begins in (("old", None), ("later", 5)):
        position, _ = await scene.store.groups.parent_positions(group, scene.keys[:2])
        assert position.child_begins == begins, "a group that comes later must not read the child's earlier life"


async def test_two_halvings_make_aliases_of_aliases(scene: HalvingScene) -> None:
    """8 -> 4 -> 2: what comes for 6 goes to 2, and then to 0, as what comes for 4; and doubling back again."""
    await scene.double()
    await scene.halve()
    assert await scene.outcomes(scene.aliased(6, 2, 0), scene.aliased(4, 0, 0)) == appended(0, 0)
    topic = await scene.halve()
    assert topic.aliases == {2: 0, 3: 1, 4: 0, 5: 1, 6: 0, 7: 1}
    assert await scene.outcomes(scene.aliased(6, 2, 5)) == [SENT_BACK], "its agent is behind"
    assert await scene.outcomes(scene.aliased(6, 0, 5), scene.aliased(4, 0, 5)) == appended(5, 10)
    image = await load_image(scene.store.cluster)
    assert load_snapshot(encode_snapshot(image)) == image
    topic = await scene.double()
    assert topic.aliases == {4: 0, 5: 1, 6: 2, 7: 3}
    assert await scene.outcomes(scene.aliased(4, 0, 10)) == appended(15)
    assert await scene.outcomes(scene.aliased(6, 2, 10)) == appended(5), "its boundary is set"
    assert (await scene.double()).aliases == {}


async def test_a_topic_that_grew_in_the_ordinary_way_halves(metastore: PostgresMetastore, raw: Session) -> None:
    scene = await open_halving_scene(metastore, raw)
    await scene.double()
    await raw.execute("DELETE FROM partition_splits")
    await raw.execute("UPDATE partitions SET state = 0")
    await scene.begin()
    await scene.pause()
    await scene.store.topics.resume_children(
        scene.controller_epoch, [pair.child_key for pair in (await scene.state()).pairs]
    )
    assert await scene.states() == [TAKES] * 4
    await scene.later(TIMES.pause_again_ms)
    await scene.pause()
    assert await scene.merge()
    assert await scene.states() == [MERGES, MERGES, ALIAS, ALIAS]


async def test_a_halving_is_given_up_until_a_child_is_merged(scene: HalvingScene) -> None:
    store = scene.store
    await scene.begin()
    await scene.pause()
    assert not await store.topics.cancel_halving(await store.cluster.metadata_head() - 1, scene.topic.topic_id)
    assert await store.topics.cancel_halving(await store.cluster.metadata_head(), scene.topic.topic_id)
    assert await scene.states() == [SPLITS, SPLITS, IS_CHILD, IS_CHILD]
    assert (await scene.image()).halving == -1
    assert (await scene.image()).splits.keys() == {0: Split(2), 1: Split(3)}.keys()
    await _merged(scene)
    assert not await store.topics.cancel_halving(await store.cluster.metadata_head(), scene.topic.topic_id)


async def test_counts_do_not_change_while_a_topic_halves(scene: HalvingScene) -> None:
    before = (await scene.image()).ordered_partitions
    change = change_count(before, 8)
    assert isinstance(change, Expansion)
    await scene.begin()
    with pytest.raises(InvalidError, match="the topic halves"):
        change_count((await scene.image()).ordered_partitions, 8)
    with pytest.raises(InvalidError, match="the topic halves"):
        halve((await scene.image()).ordered_partitions)
    with pytest.raises(HeadraceError, match="duplicate key"):
        await scene.store.topics.begin_halving(
            await scene.store.cluster.metadata_head(), Halving(scene.topic.topic_id, 2)
        )


async def test_a_stale_controller_and_a_log_that_moved_on_change_nothing(scene: HalvingScene) -> None:
    await scene.begin()
    await scene.pause()
    store, topic_id, pairs = scene.store, scene.topic.topic_id, (await scene.state()).pairs
    head = await store.cluster.metadata_head()
    assert not await store.topics.merge_children(scene.controller_epoch, head - 1, topic_id, pairs)
    assert not await store.topics.settle_halving(scene.controller_epoch, head - 1, topic_id)
    with pytest.raises(FencedError):
        await store.topics.merge_children(scene.controller_epoch - 1, head, topic_id, pairs)
    with pytest.raises(FencedError):
        await store.topics.settle_halving(scene.controller_epoch - 1, head, topic_id)
    assert await store.cluster.metadata_head() == head


async def test_a_deleted_topic_leaves_nothing_of_its_halving(scene: HalvingScene) -> None:
    await _merged(scene)
    assert await scene.outcomes(scene.aliased(2, 0, 0)) == appended(0)
    assert await scene.store.topics.delete_topics(await scene.store.cluster.metadata_head(), [scene.topic.topic_id])
    for table in ("topic_halvings", "partition_merges", "merge_producers"):
        assert await rows(scene.raw, f"SELECT * FROM {table}") == []
