"""Counts change in both directions, in the store: one transaction each; an index that returns continues where it
was.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from dataclasses import dataclass

import pytest

from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.groups import CommittedOffset
from headrace.metastore.api.read import ExtentQuery, OffsetKind, OffsetQuery
from headrace.metastore.api.retention import TO_HIGH_WATERMARK, LogStartTarget
from headrace.metastore.api.topics import CountChange, RemovalOutcome
from headrace.metastore.log.features import change_feature
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.partitions.changes import Removal, apply_change, change_count, removals
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError, HeadraceError, InvalidError
from tests.metastore.commit_scenes import Scene, batch, open_scene
from tests.metastore.sessions import Session, delete, rows, session, waiting
from tests.seeds import seeds

ROWS_PER_CALL = 100


@dataclass
class Changing:
    """A topic with a count that changes. Each change is planned from the image, as a handler and a controller do."""

    scene: Scene
    epoch: int

    @property
    def store(self) -> PostgresMetastore:
        return self.scene.store

    async def image(self) -> MetadataImage:
        return await load_image(self.store.cluster)

    async def topic(self) -> TopicImage:
        return (await self.image()).topics_by_id[self.scene.topic.topic_id]

    async def to(self, count: int) -> None:
        image = await self.image()
        topic = image.topics_by_id[self.scene.topic.topic_id].ordered_partitions
        change = change_count(topic, count)
        assert change is not None
        wanted = CountChange(self.scene.topic.topic_id, topic.initial, change)
        assert await self.store.topics.change_partition_counts(image.offset, [wanted])
        after = await self.topic()
        assert after.ordered_partitions == apply_change(topic, change), "the log says what was planned"
        assert not await self.store.topics.change_partition_counts(image.offset, [wanted]), (
            "a repeated call changes nothing"
        )

    async def remove(self, index: int, limit: int = ROWS_PER_CALL) -> RemovalOutcome:
        image = await self.image()
        return await self.store.topics.remove_partition(
            self.epoch, image.offset, self.scene.topic.topic_id, Removal(index), limit=limit
        )

    async def remove_marked(self) -> None:
        topic = await self.topic()
        for removal in removals(topic.ordered_partitions, topic.marked):
            assert await self.remove(removal.partition) is RemovalOutcome.REMOVED

    async def empty(self, *indexes: int) -> None:
        targets = [LogStartTarget(await self.key(index), TO_HIGH_WATERMARK) for index in indexes]
        await self.store.retention.move_log_starts(targets, max_extents=ROWS_PER_CALL)

    async def key(self, index: int) -> int:
        key = (await self.topic()).key(index)
        assert key is not None
        return key

    async def range_of(self, index: int) -> tuple[int, int]:
        """(log start, high watermark)."""
        key = await self.key(index)
        found = await self.store.index.list_offsets(
            [OffsetQuery(key, OffsetKind.EARLIEST), OffsetQuery(key, OffsetKind.LATEST)]
        )
        return found[0].offset, found[1].offset


async def changing(store: PostgresMetastore, partitions: int) -> Changing:
    scene = await open_scene(store, partitions)
    lease = await store.controller.hold_controller_lease(1, uuid.uuid4(), 600_000)
    return Changing(scene, lease.controller_epoch)


@pytest.mark.requirement("P2")
async def test_growth_raises_epochs_and_new_partitions_know_their_source(metastore: PostgresMetastore) -> None:
    world = await changing(metastore, 8)
    await world.to(13)
    topic = await world.topic()
    assert topic.leader_epochs == (1,) * 8 + (0,) * 5
    assert (topic.initial_partition_count, topic.undeleted_partition_count) == (8, 13)
    assert {index: tuple(source) for index, source in topic.created_from.items()} == {
        8: (0, 0),
        9: (1, 0),
        10: (2, 0),
        11: (3, 0),
        12: (4, 0),
    }
    new = await world.key(12)
    stale = batch(world.scene.keys[0], leader_epoch=0)
    assert await world.scene.outcomes(batch(new), stale, batch(world.scene.keys[0], leader_epoch=1)) == [
        (BatchOutcome.APPENDED, 0),
        (BatchOutcome.LEADER_EPOCH_MISMATCH, -1),
        (BatchOutcome.APPENDED, 0),
    ]


@pytest.mark.requirement("P3")
@pytest.mark.requirement("P4")
async def test_a_marked_partition_takes_no_new_records_but_knows_its_duplicates(metastore: PostgresMetastore) -> None:
    world = await changing(metastore, 2)
    await world.to(4)
    marked, kept = await world.key(3), await world.key(1)
    assert await world.scene.outcomes(batch(marked, 0), batch(kept, 0)) == [(BatchOutcome.APPENDED, 0)] * 2
    await world.to(2)
    topic = await world.topic()
    assert (topic.marked, topic.before_deletion[3]) == ([2, 3], {1: 1})
    assert await world.scene.outcomes(
        batch(marked, 0, leader_epoch=0),  # a retry of what was committed before
        batch(kept, 0, partition_count=4),
        batch(marked, 5),
        batch(marked),
        batch(marked, partition_count=4),
        batch(kept, partition_count=4),
        batch(kept, partition_count=2),
        batch(kept),
    ) == [
        (BatchOutcome.DUPLICATE, 0),
        (BatchOutcome.DUPLICATE, 0),
        (BatchOutcome.PARTITION_MARKED, -1),
        (BatchOutcome.PARTITION_MARKED, -1),
        (BatchOutcome.PARTITION_COUNT_MISMATCH, -1),
        (BatchOutcome.PARTITION_COUNT_MISMATCH, -1),
        (BatchOutcome.APPENDED, 5),
        (BatchOutcome.APPENDED, 10),
    ]
    assert await world.range_of(3) == (0, 5)


@pytest.mark.requirement("P3")
async def test_a_partition_is_removed_once_it_is_empty(metastore: PostgresMetastore) -> None:
    world = await changing(metastore, 2)
    await world.to(4)
    await world.scene.outcomes(batch(await world.key(3), 0))
    with pytest.raises(HeadraceError, match="not marked"):
        await world.remove(3)
    await world.to(2)
    assert await world.remove(3) is RemovalOutcome.NOT_EMPTY
    assert await world.remove(2) is RemovalOutcome.REMOVED
    topic = await world.topic()
    assert (topic.indexes, topic.marked, topic.key(2)) == ((0, 1, 3), [3], None)
    with pytest.raises(InvalidError, match="no growth while partitions are to be deleted"):
        change_count(topic.ordered_partitions, 5)
    await world.empty(3)
    head = await metastore.cluster.metadata_head()
    stale = metastore.topics.remove_partition(world.epoch, head - 1, topic.topic_id, Removal(3), limit=ROWS_PER_CALL)
    assert await stale is RemovalOutcome.HEAD_MOVED
    with pytest.raises(FencedError):
        await metastore.topics.remove_partition(world.epoch - 1, head, topic.topic_id, Removal(3), limit=ROWS_PER_CALL)
    assert await world.remove(3) is RemovalOutcome.REMOVED
    assert list((await world.topic()).indexes) == [0, 1]


@pytest.mark.requirement("P3")
async def test_an_index_that_returns_goes_on_and_inherits_nothing(metastore: PostgresMetastore, raw: Session) -> None:
    """8 -> 13 -> 9 -> 13 with a group, idempotent producers and a late purge."""
    world = await changing(metastore, 8)
    (old,) = await metastore.commits.allocate_producer_ids(1)
    await world.to(13)
    key = await world.key(12)
    await world.scene.outcomes(batch(key, 0, producer=old), batch(key, 5, producer=old))
    claim = await metastore.groups.claim_group("readers", *world.scene.agent)
    assert claim is not None
    await metastore.groups.commit_offsets("readers", claim.coordinator_epoch, [CommittedOffset(key, 7, 0, "")])
    await world.to(9)
    await world.empty(12)
    await world.remove_marked()
    assert await world.scene.outcomes(batch(key)) == [(BatchOutcome.UNKNOWN_PARTITION, -1)]
    await world.to(13)
    again = await world.key(12)
    assert again == key, "the key is used again"
    assert await world.range_of(12) == (10, 10)
    topic = await world.topic()
    assert (topic.leader_epochs[12], topic.removed, topic.marked) == (2, frozenset(), [])
    for table in ("producer_state", "group_offsets", "share_partitions", "extents", "time_blocks"):
        assert not await rows(raw, f"SELECT FROM {table} WHERE partition_key = {key}"), table

    (young,) = await metastore.commits.allocate_producer_ids(1)
    assert await world.scene.outcomes(
        batch(key, 10, producer=old),  # the partition may have known it
        batch(key, 3, producer=young),  # and not this one
        batch(key, 0, producer=young),
    ) == [(BatchOutcome.APPENDED, 10), (BatchOutcome.OUT_OF_ORDER, -1), (BatchOutcome.APPENDED, 15)]
    while await metastore.housekeeping.purge_deleted_partitions(ROWS_PER_CALL):
        pass
    (found,) = await metastore.index.find_extents([ExtentQuery(key, 10, 1 << 30)])
    assert [(extent.base_offset, extent.last_offset) for extent in found.extents] == [(10, 14), (15, 19)]


@pytest.mark.requirement("P3")
async def test_a_removal_with_many_rows_goes_on_where_it_stopped(metastore: PostgresMetastore) -> None:
    world = await changing(metastore, 1)
    await world.to(2)
    key = await world.key(1)
    await world.scene.outcomes(*(batch(key, 0, producer=producer) for producer in range(1000, 1005)))
    await world.to(1)
    await world.empty(1)
    outcomes = [await world.remove(1, limit=2) for _ in range(3)]
    assert outcomes == [RemovalOutcome.UNFINISHED, RemovalOutcome.UNFINISHED, RemovalOutcome.REMOVED]


@pytest.mark.requirement("P3")
async def test_a_deleted_topic_forgets_its_removed_partitions(metastore: PostgresMetastore, raw: Session) -> None:
    world = await changing(metastore, 1)
    await world.to(3)
    await world.to(1)
    await world.remove_marked()
    assert len(await rows(raw, "SELECT FROM removed_partitions")) == 2
    await delete(metastore, world.scene.topic.topic_id)
    assert not await rows(raw, "SELECT FROM removed_partitions")


@pytest.mark.requirement("P2")
async def test_counts_do_not_change_below_their_format(metastore: PostgresMetastore) -> None:
    world = await changing(metastore, 2)
    image = await world.image()
    down = change_feature(image, "metadata.format", 3, allow_downgrade=True)
    assert down is not None
    assert await metastore.cluster.append_records(image.offset, [down])
    with pytest.raises(HeadraceError, match="wanted=4 active=3"):
        await world.to(4)
    assert list((await world.topic()).indexes) == [0, 1]


@pytest.mark.requirement("P4")
async def test_a_change_waits_for_a_commit_in_progress(metastore: PostgresMetastore, metastore_url: str) -> None:
    world = await changing(metastore, 1)
    async with session(metastore_url) as committing, session(metastore_url) as watching:
        async with committing.transaction():
            await committing.execute("SELECT lock_shards(%s::smallint[])", ([world.scene.shard(0)],))
            growing = asyncio.create_task(world.to(3))
            await waiting(watching, 1)
            assert await rows(watching, "SELECT leader_epoch FROM partitions") == [(0,)]
        await growing
        assert sorted(await rows(watching, "SELECT leader_epoch FROM partitions")) == [(0,), (0,), (1,)]


@pytest.mark.requirement("P2")
@pytest.mark.requirement("P3")
@pytest.mark.parametrize("seed", seeds(range(2), range(2, 8)))
async def test_a_commit_that_races_a_change_sees_it_whole_or_not_at_all(
    metastore: PostgresMetastore, seed: int
) -> None:
    """The batches of one call are in all shards: each is judged by the epochs of before, or each by those of after."""
    rng = random.Random(seed)
    world = await changing(metastore, 4)
    counts = itertools.cycle([7, 4])
    for _ in range(6):
        if (await world.topic()).marked:
            await world.empty(*(await world.topic()).marked)
            await world.remove_marked()
        topic, count = await world.topic(), next(counts)
        batches = [
            batch(
                await world.key(index),
                leader_epoch=topic.leader_epochs[index],
                partition_count=rng.choice([-1, len(topic.indexes)]),
            )
            for index in topic.indexes
        ]
        work = [world.scene.outcomes(*batches), world.to(count)]
        turn = rng.choice([1, -1])
        answers = await asyncio.gather(*work[::turn])
        outcomes = answers[::turn][0]
        assert outcomes is not None
        judged = {outcome is BatchOutcome.APPENDED for outcome, _ in outcomes}
        assert len(judged) == 1, outcomes
    assert (await world.topic()).ordered_partitions.initial == 4
