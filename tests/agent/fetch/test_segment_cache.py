"""Replays behind the tail: how often they ask the metastore, and what they read after compaction and deletions."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.fetch import locate
from tests.agent.fetch.fetch_world import World, split_sent

FILES = 200
pytestmark = pytest.mark.requirement("R8")


async def replay(world: World, key: int, *, per_fetch: int) -> tuple[int, list[bytes]]:
    """A new agent reads everything, so many bytes at a time; its questions, and the batches."""
    service = world.new_service(CollectorRegistry())
    await world.clock.run(service.start())
    before = world.metastore.asked["find_extents"]
    offset, found = 0, []
    while offset < FILES:
        result = await world.clock.run(
            world.request_fetch({key: offset}, partition_max_bytes=per_fetch, service=service)
        )
        assert result.code(key) == 0
        batches = split_sent(result.records(key))
        found += batches
        offset += len(batches)
    await world.clock.run(service.close())
    return world.metastore.asked["find_extents"] - before, found


async def test_a_replay_asks_the_metastore_once_in_many_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    (key,) = world.create_topic("t", 1)
    for number in range(FILES):
        await world.append(key, b"%d" % number)
    size = len(world.live[key][0].stored)
    asked, found = await replay(world, key, per_fetch=2 * size)
    monkeypatch.setattr(locate, "READ_AHEAD", 1)
    asked_before, found_before = await replay(world, key, per_fetch=2 * size)
    assert found == found_before == [batch.sent() for batch in world.live[key]]
    assert asked_before >= FILES // 4
    assert asked <= asked_before // 8
