"""A consumer's rack decides where it reads from (KIP-392), unless it is there already or no other agent is."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import MappingProxyType

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.cluster.routing import Routes
from headrace.agent.cluster.zone import ZoneTraffic
from headrace.config.settings import Settings
from headrace.metastore.log.image import AgentImage
from headrace.protocol.request import ClientConnection, Request, Response
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


async def test_behind_one_address_a_consumer_is_never_sent_elsewhere() -> None:
    """It would ask the same address again, without end."""
    world = World()
    handler = world.service._fetch
    handler._clients = replace(handler._clients, is_shared=lambda listener: listener == "PLAINTEXT")
    await world.service.start()
    (key,) = world.create_topic("t", 1)
    await world.append(key, b"x")
    _in_zones(world, "a", "b")
    stays = await world.fetch({key: 0}, rack_id="b", max_wait_ms=10_000)
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


@pytest.mark.requirement("W15")
async def test_bytes_of_clients_that_state_no_zone_are_counted_apart() -> None:
    """They may cross zones, so they count as neither `same` nor `other`; the client's own data counts once."""
    world = World()
    world.settings = Settings(broker_rack="a")
    world.registry = CollectorRegistry()
    world.service = world.new_service(world.registry)
    await world.service.start()
    (key,) = world.create_topic("t", 1)
    await world.append(key, b"x" * 100)
    _in_zones(world, "a", "b")
    found = await world.fetch({key: 0})
    assert (found.partitions[key].preferred_read_replica, found.size > 100) == (-1, True)
    assert _traffic(world, "fetch") == {"same": 0, "other": 0, "unknown": found.size}
    await world.fetch({key: 0}, rack_id="a")
    assert _traffic(world, "fetch") == {"same": found.size, "other": 0, "unknown": found.size}
    await world.service.close()


@pytest.mark.requirement("W15")
@pytest.mark.parametrize(
    ("client_id", "zone"), [(None, "unknown"), ("writer", "unknown"), ("w,zone=a", "same"), ("w,zone=b", "other")]
)
async def test_bytes_of_a_produce_request_are_counted_by_the_zone_in_its_client_id(
    client_id: str | None, zone: str
) -> None:
    registry = CollectorRegistry()
    traffic = ZoneTraffic("a", registry)

    async def stored(request: Request) -> Response:
        return Response(None)

    body = memoryview(b"x" * 70)
    await traffic.counted_produce(stored)(Request(ClientConnection(1, "h"), 0, 9, 1, client_id, body, 0.0))
    counted = {"same": 0, "other": 0, "unknown": 0, zone: 70}
    assert {zone: _sample(registry, "produce", zone) for zone in counted} == counted


def _traffic(world: World, path: str) -> dict[str, float | None]:
    return {zone: _sample(world.registry, path, zone) for zone in ("same", "other", "unknown")}


def _sample(registry: CollectorRegistry, path: str, zone: str) -> float | None:
    return registry.get_sample_value("headrace_zone_traffic_bytes_total", {"path": path, "zone": zone})
