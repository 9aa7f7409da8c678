"""Merged files of a topic that is restored, and of a log start that moves back: their keys, and that they end once."""

from __future__ import annotations

import pytest

from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.topic_restore import kept_records, newest_of, restore_deleted
from tests.compactor.segment_world import DELETED, DELETING, FINISHED, HOUR, STARTED, SegmentWorld
from tests.metastore.sessions import set_for_cluster


@pytest.fixture
async def world(world: SegmentWorld) -> SegmentWorld:
    """A cluster that keeps files for an hour."""
    await set_for_cluster(world.postgres, "file.delete.delay.ms", HOUR * 1000)
    return world


async def delete(world: SegmentWorld) -> None:
    """Delete the topic as an agent does, and do what housekeeping does."""
    image = await load_image(world.postgres.cluster)
    topic = image.topics_by_name["t"]
    assert await world.postgres.topics.delete_topics(
        image.offset, [topic.topic_id], {topic.topic_id: kept_records(image, topic)}
    )
    await purge(world)


async def purge(world: SegmentWorld) -> None:
    while await world.postgres.housekeeping.purge_deleted_partitions(2):
        pass


@pytest.mark.requirement("R4.5")
async def test_a_restored_topic_has_its_keys(world: SegmentWorld) -> None:
    """A deletion becomes one of its segments when it is final: then in the order of the lifecycle, and at once."""
    keys = await world.filled()
    await world.compact(1)
    records, segments = await world.records(keys[0]), await world.keys()
    await delete(world)
    await world.janitor()
    await world.clean_up()
    topic = newest_of(await world.postgres.topics.restorable_topics(), "t", None)
    await restore_deleted(world.postgres, topic, "t", lambda what, done, total: None)
    assert await world.records(keys[0]) == records
    assert await world.keys() == segments
    assert [event.state for event in await world.events()] == [STARTED, FINISHED]
    await world.check_rest()
    await delete(world)
    await world.advance(HOUR + 60)
    await purge(world)
    await world.advance(HOUR)  # the files are older than the time for which their rows are kept
    await world.janitor()
    await world.clean_up()
    found = [event.state for event in await world.events()]
    assert found[2:] == ["DELETE_PARTITION_STARTED", DELETING, DELETED, "DELETE_PARTITION_FINISHED"]
    assert await world.objects() == set()


async def test_restored_records_get_new_keys(world: SegmentWorld) -> None:
    """Their key has ended with their removal; a key does not come back."""
    keys = await world.filled()
    await world.compact(1)
    records, (old,) = await world.records(keys[0]), await world.keys()
    await world.postgres.retention.move_log_starts([LogStartTarget(keys[0], 6)], max_extents=100)
    assert [key.state for key in await world.keys()] == [FINISHED, DELETING]
    await world.postgres.topics.restore_records(keys[0], 0, limit=100)
    assert await world.records(keys[0]) == records
    await world.advance(2 * HOUR)
    for _ in range(2):
        await world.janitor()
        await world.clean_up()
    assert await world.records(keys[0]) == records
    live = [key for key in await world.keys() if key.live_extents]
    assert [(key.end_offset, key.state, key.live_extents) for key in live] == [(old.end_offset, FINISHED, 1)]
    assert live[0].epoch > old.epoch
    await world.postgres.retention.move_log_starts([LogStartTarget(keys[0], 6)], max_extents=100)
    await world.settle()
    assert await world.objects() == set()
    await world.check_rest()
