"""A consumer's rack decides where it reads from (KIP-392), unless it is there already or nobody else is."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import MappingProxyType

import pytest

from headrace.agent.cluster.routing import Routes
from headrace.metastore.log.image import AgentImage
from tests.agent.fetch.fetch_world import NODE_ID, World

THERE = NODE_ID + 1


def _in_zones(world: World, own: str | None, other: str | None, *, fenced: bool = False) -> None:
    """This agent and another one, each in its zone."""
    agents = {
        node_id: AgentImage(node_id, 1, uuid.UUID(int=node_id), f"h{node_id}", 9092, rack, fenced and node_id == THERE)
        for node_id, rack in ((NODE_ID, own), (THERE, other))
    }
    image = replace(world.view.image, agents=MappingProxyType(agents))
    world.view.image = world.view.head = image
    routes = Routes(image, world.view.commit_shards)
    world.view.leader = routes.leader  # type: ignore[method-assign]


@pytest.mark.requirement("W15")
@pytest.mark.parametrize("version", [11, 12, 17])
async def test_a_consumer_of_another_zone_is_sent_there_without_data(version: int) -> None:
    world = World()
    await world.service.start()
    (key,) = world.create_topic("t", 1)
    await world.append(key, b"x")
    _in_zones(world, "a", "b")
    sent = await world.fetch({key: 0}, rack_id="b", version=version, max_wait_ms=10_000)
    assert (sent.code(key), sent.partitions[key].preferred_read_replica, sent.records(key)) == (0, THERE, b"")
    stays = await world.fetch({key: 0}, rack_id="a", version=version)
    assert (stays.partitions[key].preferred_read_replica, stays.size > 0) == (-1, True)
    await world.service.close()


@pytest.mark.requirement("W15")
@pytest.mark.parametrize(("own", "other", "fenced"), [("a", "c", False), ("b", "b", False), ("a", "b", True)])
async def test_a_zone_that_is_empty_or_here_changes_nothing(own: str, other: str, fenced: bool) -> None:
    world = World()
    await world.service.start()
    (key,) = world.create_topic("t", 1)
    await world.append(key, b"x")
    _in_zones(world, own, other, fenced=fenced)
    found = await world.fetch({key: 0}, rack_id="b")
    assert (found.partitions[key].preferred_read_replica, found.size > 0) == (-1, True)
    await world.service.close()
