"""Fetch compares the partition count that a client sends, also in a session."""

from __future__ import annotations

import struct
import uuid
from dataclasses import replace

import pytest

from headrace.agent.cluster.partition_names import RequestedPartition, resolve
from headrace.protocol.errors import INVALID_PARTITION_METADATA
from headrace.protocol.partition_counts import NO_COUNT, count_tags
from headrace.protocol.request import Request
from tests.agent.fetch.fetch_world import World


async def fetched(world: World, name: str, count: int, *, session_id: int = 0, epoch: int = -1) -> tuple[int, int]:
    """(error code of partition 0, session id); (-1, ...) if it is not in the reply."""
    topic = world.view.head.topics_by_name[name]
    partition = struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 1_000) + b"\0"
    named = b"\x02" + topic.topic_id.bytes + b"\x02" + partition + count_tags(count) if count else b"\x01"
    body = struct.pack(">iiiibii", -1, 0, 0, 1_000, 0, session_id, epoch) + named + b"\x01\x01\0"
    request = Request(world.connection, 1, 13, 7, "test", memoryview(body), world.clock.monotonic())
    response = await world.clock.run(world.service.handle_fetch(request))
    assert response.buffers is not None
    frame = b"".join(response.buffers)
    code, session_id, topics = struct.unpack_from(">hib", frame, 4 + 1 + 4)
    assert code == 0
    return (-1 if topics == 1 else struct.unpack_from(">h", frame, 16 + 16 + 1 + 4)[0]), session_id


@pytest.mark.requirement("P4")
async def test_a_fetch_with_another_count_is_refused_for_the_partition(world: World) -> None:
    world.create_topic("t", 3)
    assert (await fetched(world, "t", 3))[0] == 0
    assert (await fetched(world, "t", 2))[0] == INVALID_PARTITION_METADATA
    assert (await fetched(world, "t", NO_COUNT))[0] == 0


@pytest.mark.requirement("P4")
async def test_a_session_remembers_the_count(world: World) -> None:
    world.create_topic("t", 3)
    code, session_id = await fetched(world, "t", 3, epoch=0)
    assert (code, session_id > 0) == (0, True)
    assert (await fetched(world, "t", 0, session_id=session_id, epoch=1))[0] == -1  # no news
    grow(world, "t", 5)
    assert (await fetched(world, "t", 0, session_id=session_id, epoch=2))[0] == INVALID_PARTITION_METADATA
    assert (await fetched(world, "t", 5, session_id=session_id, epoch=3))[0] == 0


@pytest.mark.requirement("P4")
async def test_a_count_is_wrong_only_after_the_image_caught_up(world: World) -> None:
    world.create_topic("t", 3)
    before = world.view.image
    grow(world, "t", 5)
    world.view.image = before
    (answer,) = await resolve(world.view, [RequestedPartition("t", 0, -1, 5)])
    assert answer.error == 0
    assert world.view.image.topics_by_name["t"].undeleted_partition_count == 5


def grow(world: World, name: str, count: int) -> None:
    topic = world.view.head.topics_by_name[name]
    assert topic.topic_id != uuid.UUID(int=0)
    world._set_topic(replace(topic, undeleted_partition_count=count))
    world.view.image = world.view.head
