"""Topics grow: new partitions appear whole, to readers of the log and to commits, and never out of turn."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.read import OffsetKind, OffsetQuery
from headrace.metastore.api.topics import PartitionGrowth
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import HeadraceError, InvalidError
from tests.metastore.commit_scenes import batch, open_scene
from tests.metastore.sessions import create, new_topic, rows, session, waiting


async def test_new_partitions_take_data_and_keep_the_old_ones(metastore: PostgresMetastore) -> None:
    scene = await open_scene(metastore, partitions=2)
    await scene.outcomes(batch(scene.keys[1]))
    image = await load_image(metastore.cluster)
    growth = PartitionGrowth(scene.topic.topic_id, 2, 5)
    assert not await metastore.topics.create_partitions(image.offset - 1, [growth])
    assert await metastore.topics.create_partitions(image.offset, [growth])
    assert not await metastore.topics.create_partitions(image.offset, [growth]), "a repeated call finds the head moved"

    grown = (await load_image(metastore.cluster)).topics_by_id[scene.topic.topic_id]
    assert grown.leader_epochs == (0,) * 5
    assert (grown.initial_partition_count, grown.undeleted_partition_count) == (5, 5), "keys are placed by modulo"
    new_key = grown.key(4)
    assert new_key is not None
    assert await scene.outcomes(batch(new_key), batch(scene.keys[1])) == [
        (BatchOutcome.APPENDED, 0),
        (BatchOutcome.APPENDED, 5),
    ]
    (latest,) = await metastore.index.list_offsets([OffsetQuery(new_key, OffsetKind.LATEST)])
    assert (latest.known, latest.offset) == (True, 5)


async def test_who_is_preferred_for_a_new_partition_is_in_the_log(metastore: PostgresMetastore) -> None:
    topic = new_topic("assigned", 2)._replace(preferred=[[5, 6], [6]])
    image = await create(metastore, topic)
    growth = PartitionGrowth(topic.topic_id, 2, 4, preferred=[[6, 5], [5]])
    assert await metastore.topics.create_partitions(image.offset, [growth])
    found = (await load_image(metastore.cluster)).topics_by_id[topic.topic_id]
    assert [found.assignment(index).preferred for index in range(4)] == [(5, 6), (6,), (6, 5), (5,)]
    assert found.leader_epochs == (0,) * 4


async def test_a_commit_that_names_the_count_is_judged_by_the_new_one(metastore: PostgresMetastore) -> None:
    scene = await open_scene(metastore, partitions=1)
    assert await metastore.topics.create_partitions(
        await metastore.cluster.metadata_head(), [PartitionGrowth(scene.topic.topic_id, 1, 2)]
    )
    old, new = batch(scene.keys[0], partition_count=1), batch(scene.keys[0], partition_count=2)
    assert [outcome for outcome, _ in await scene.outcomes(old, new)] == [
        BatchOutcome.PARTITION_COUNT_MISMATCH,
        BatchOutcome.APPENDED,
    ]


async def test_growth_waits_for_a_commit_in_progress(metastore: PostgresMetastore, metastore_url: str) -> None:
    scene = await open_scene(metastore, partitions=1)
    growth = PartitionGrowth(scene.topic.topic_id, 1, 3)
    head = await metastore.cluster.metadata_head()
    async with session(metastore_url) as committing, session(metastore_url) as watching:
        async with committing.transaction():
            await committing.execute("SELECT lock_shards(%s::smallint[])", ([scene.shard(0)],))
            growing = asyncio.create_task(metastore.topics.create_partitions(head, [growth]))
            await waiting(watching, 1)
            assert len(await rows(watching, "SELECT FROM partitions")) == 1
        assert await growing
        assert len(await rows(watching, "SELECT FROM partitions")) == 3


async def test_commits_do_not_wait_while_partitions_are_written(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    """There may be ten thousand. Here another session holds the second one's place, and ends."""
    scene = await open_scene(metastore, partitions=1)
    head = await metastore.cluster.metadata_head()
    async with session(metastore_url) as slow, session(metastore_url) as watching:
        async with slow.transaction(force_rollback=True):
            await slow.execute("INSERT INTO partition_heads VALUES (%s, 0)", (scene.keys[0] + 1,))
            growing = asyncio.create_task(
                metastore.topics.create_partitions(head, [PartitionGrowth(scene.topic.topic_id, 1, 3)])
            )
            await waiting(watching, 1)
            commit = asyncio.create_task(scene.outcomes(batch(scene.keys[0])))
            behind = asyncio.create_task(waiting(watching, 2))
            await asyncio.wait({commit, behind}, return_when=asyncio.FIRST_COMPLETED)
            assert commit.done(), "it waits behind the growth"
            behind.cancel()
        assert await growing
    assert await commit == [(BatchOutcome.APPENDED, 0)]


@pytest.mark.parametrize(("first", "count"), [(1, 4), (3, 4), (2, 2), (2, 1), (2, (1 << 24) + 1)])
async def test_partitions_out_of_turn_are_refused_whole(metastore: PostgresMetastore, first: int, count: int) -> None:
    topic = new_topic("t", 2)
    image = await create(metastore, topic)
    with pytest.raises(HeadraceError) as refused:
        await metastore.topics.create_partitions(image.offset, [PartitionGrowth(topic.topic_id, first, count)])
    assert isinstance(refused.value, InvalidError)
    assert await load_image(metastore.cluster) == image


async def test_several_topics_grow_in_one_call(metastore: PostgresMetastore) -> None:
    first, second = new_topic("a", 1), new_topic("b", 3)
    image = await create(metastore, first, second)
    growths = [PartitionGrowth(first.topic_id, 1, 2), PartitionGrowth(second.topic_id, 3, 4)]
    assert await metastore.topics.create_partitions(image.offset, growths)
    image = await load_image(metastore.cluster)
    assert [len(image.topics_by_name[name].leader_epochs) for name in "ab"] == [2, 4]
    assert await metastore.topics.create_topics(image.offset, [new_topic("c")]), "the log goes on without a gap"


@pytest.mark.parametrize("seed", range(3))
async def test_a_commit_that_races_growth_sees_it_whole_or_not_at_all(metastore: PostgresMetastore, seed: int) -> None:
    """Batches of one call are in all commit shards and name the count: every one is judged by the same."""
    rng = random.Random(seed)
    scene = await open_scene(metastore, partitions=8)
    count = 8
    for _ in range(12):
        offset = await metastore.cluster.metadata_head()
        growth = PartitionGrowth(scene.topic.topic_id, count, count + rng.randint(1, 3))
        named = rng.choice([count, growth.partition_count])
        work: list[Any] = [
            scene.outcomes(*(batch(key, partition_count=named, place=n) for n, key in enumerate(scene.keys))),
            metastore.topics.create_partitions(offset, [growth]),
        ]
        turn = rng.choice([1, -1])
        answers = await asyncio.gather(*work[::turn])
        outcomes, grown = answers[::turn]
        assert grown is True
        assert len({outcome for outcome, _ in outcomes}) == 1, outcomes
        count = growth.partition_count
    after = [outcome for outcome, _ in await scene.outcomes(batch(scene.keys[0], partition_count=count))]
    assert after == [BatchOutcome.APPENDED]
    image = await load_image(metastore.cluster)
    assert len(image.topics_by_id[scene.topic.topic_id].leader_epochs) == count
