"""OffsetForLeaderEpoch: where an epoch ends, always as the primary knows it."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kio.schema.errors import ErrorCode

from headrace.agent.fetch.offsets.offset_requests import OffsetForLeaderEpoch
from headrace.storage.errors import UnavailableError
from tests.agent.client_calls import call, versions_of
from tests.agent.fetch.fetch_world import World
from tests.nouns import nouns

Topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic


async def ask(
    world: World, *asked: tuple[str, int, int], current: int = -1, version: int = 4
) -> list[tuple[int, int, int]]:
    """(error, epoch, end offset) for each asked (topic, partition, epoch)."""
    topics = [
        Topic(
            topic=name,
            partitions=[
                Topic.OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=epoch)
            ],
        )
        for name, index, epoch in asked
    ]
    message = OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)
    answer: Any = await call(OffsetForLeaderEpoch(world.view, nouns(world.metastore)), message, version)
    return [(p.error_code, p.leader_epoch, p.end_offset) for topic in answer.topics for p in topic.partitions]


@pytest.mark.parametrize("version", versions_of(23))
async def test_epochs_end_where_the_next_begins(world: World, key: int, version: int) -> None:
    await world.append(key, b"a", b"b")
    world.model.set_leader_epoch(key, 3)
    await world.append(key, b"c")
    world.model.set_leader_epoch(key, 5)
    asked = [("t", 0, epoch) for epoch in (0, 1, 3, 4, 5, 6)]
    assert await ask(world, *asked, version=version) == [
        (0, 0, 2),
        (0, 0, 2),
        (0, 3, 3),
        (0, 3, 3),
        (0, 5, 3),
        (0, -1, -1),
    ]


async def test_each_partition_has_its_own_answer(world: World, key: int) -> None:
    await world.append(key, b"a")
    (gone,) = world.create_topic("gone", 1)
    world.model.delete_topic(gone >> 24)
    unknown = (int(ErrorCode.unknown_topic_or_partition), -1, -1)
    assert await ask(world, ("t", 0, 0), ("t", 7, 0), ("nope", 0, 0), ("gone", 0, 0)) == [
        (0, 0, 1),
        unknown,
        unknown,
        unknown,
    ]


async def test_the_clients_own_epoch_is_judged_first(world: World) -> None:
    world.create_topic("t", 1)
    assert await ask(world, ("t", 0, 0), current=9) == [(int(ErrorCode.unknown_leader_epoch), -1, -1)]


async def test_a_silent_metastore_is_a_storage_error(world: World) -> None:
    world.create_topic("t", 1)
    world.metastore.fail = UnavailableError("down")
    assert await ask(world, ("t", 0, 0)) == [(int(ErrorCode.kafka_storage_error), -1, -1)]
