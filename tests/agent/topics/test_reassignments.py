"""Partition reassignments over the protocol, on Postgres: listed, completed, refused, cancelled."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.metastore.log.reassignment import completions
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.protocol.api_keys import ApiKey
from tests.agent.client_calls import versions_of
from tests.agent.topics.membership_world import World


@pytest.fixture
async def world(metastore: PostgresMetastore) -> World:
    world = World(metastore)
    await world.view.catch_up()
    return world


async def _alter(
    world: World, version: int, *wishes: tuple[str, int, tuple[int, ...] | None], **more: Any
) -> list[Any]:
    topics = [
        ("ReassignableTopic", {
            "name": name,
            "partitions": [("ReassignablePartition", {"partition_index": index, "replicas": replicas})],
        })
        for name, index, replicas in wishes
    ]  # fmt: skip
    answer = await world.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, topics=topics, **more)
    assert answer.error_code is ErrorCode.none
    return [partition.error_code for topic in answer.responses for partition in topic.partitions]


async def _ongoing(world: World) -> list[tuple[Any, ...]]:
    answer = await world.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None)
    return [
        (t.name, p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
        for t in answer.topics
        for p in t.partitions
    ]


async def _complete(world: World) -> None:
    """Do what the active controller does each turn."""
    image = await world.view.catch_up()
    assert await world.api.cluster.append_records(image.offset, completions(image))
    await world.view.catch_up()


def _leader(world: World, topic: str, index: int) -> int | None:
    key = world.view.image.topics_by_name[topic].key(index)
    assert key is not None
    leader = world.view.leader(key)
    return None if leader is None else leader.node_id


@pytest.mark.requirement("C9")
@pytest.mark.parametrize("version", versions_of(ApiKey.ALTER_PARTITION_REASSIGNMENTS))
async def test_a_reassignment_is_listed_completed_and_pins_leadership(world: World, version: int) -> None:
    for node_id in (1, 2, 3):
        await world.agent(node_id)
    await world.topic("orders", 3)
    assert await _alter(world, version, ("orders", 0, (3, 1)), ("orders", 2, (1,))) == [ErrorCode.none] * 2
    assert await _ongoing(world) == [("orders", 0, (3, 1), (3, 1), ()), ("orders", 2, (1,), (1,), ())]
    await _complete(world)
    assert await _ongoing(world) == []
    assert (_leader(world, "orders", 0), _leader(world, "orders", 2)) == (3, 1)
    assert await _alter(world, version, ("orders", 0, (1,))) == [ErrorCode.none]
    assert await _ongoing(world) == []  # a subset completes at once
    assert _leader(world, "orders", 0) == 1


@pytest.mark.requirement("C9")
async def test_a_reassignment_waits_for_its_agents_and_can_be_cancelled(world: World) -> None:
    await world.agent(1)
    await world.agent(2, unfence=False)
    await world.topic("orders", 1)
    await _alter(world, 0, ("orders", 0, (1,)))
    await _complete(world)
    await _alter(world, 0, ("orders", 0, (2,)))
    assert completions(world.view.image) == []
    assert await _ongoing(world) == [("orders", 0, (2, 1), (2,), (1,))]
    assert _leader(world, "orders", 0) == 1
    assert await _alter(world, 0, ("orders", 0, None)) == [ErrorCode.none]
    assert await _ongoing(world) == []
    assert await _alter(world, 0, ("orders", 0, None)) == [ErrorCode.no_reassignment_in_progress]


@pytest.mark.requirement("C9")
async def test_a_refused_reassignment_blocks_no_other(world: World) -> None:
    await world.agent(1)
    await world.topic("orders", 2)
    codes = await _alter(world, 1, ("nope", 0, (1,)), ("orders", 9, (1,)), ("orders", 0, (99,)), ("orders", 1, (1,)))
    assert codes == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.none,
    ]
    await world.agent(2)
    larger = await _alter(world, 1, ("orders", 0, (1, 2)), allow_replication_factor_change=False)
    assert larger == [ErrorCode.invalid_replication_factor]
    answer = await world.ask(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        0,
        topics=[("ListPartitionReassignmentsTopics", {"name": "orders", "partition_indexes": ()})],
    )
    assert answer.topics == ()


@pytest.mark.requirement("C9")
async def test_a_reassignment_ends_with_its_topic(world: World) -> None:
    await world.agent(1)
    await world.topic("orders", 1)
    await _alter(world, 0, ("orders", 0, (1,)))
    topic_id = world.view.image.topics_by_name["orders"].topic_id
    assert await world.api.topics.delete_topics(await world.api.cluster.metadata_head(), [topic_id])
    assert await _ongoing(world) == []
