"""KIP-103: clients are sent to the agents' addresses of the listener on which their request came in."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin import DescribeClusterRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from headrace.metastore.api.agents import Listener
from tests.agent.client_calls import call
from tests.agent.topics.test_cluster import DESCRIBE_CLUSTER, FIND_COORDINATOR, World
from tests.manual_clock import ManualClock

OUTSIDE, INSIDE = "PLAINTEXT", "INTERNAL"


@pytest.fixture
async def world(fake_clock: ManualClock) -> World:
    """Two agents with two listeners, and one of the previous release, with one."""
    world = World(fake_clock)
    for node_id in (1, 2):
        world.api.add_agent(
            node_id,
            listeners=(
                Listener(OUTSIDE, "lb.example", 9000 + node_id, 0),
                Listener(INSIDE, f"10.0.0.{node_id}", 9094, 0),
            ),
        )
    world.api.add_agent(3)
    await world.cluster.catch_up()
    return world


def _addresses(brokers: Any) -> dict[int, str]:
    return {getattr(b, "node_id", getattr(b, "broker_id", None)): f"{b.host}:{b.port}" for b in brokers}


SHOWN = {
    OUTSIDE: {1: "lb.example:9001", 2: "lb.example:9002", 3: "agent-3:9092"},
    INSIDE: {1: "10.0.0.1:9094", 2: "10.0.0.2:9094", 3: "agent-3:9092"},
    "OTHER": {1: "lb.example:9001", 2: "lb.example:9002", 3: "agent-3:9092"},
}
"""Addresses shown by listener; an agent without it is shown with its first one."""


@pytest.mark.parametrize("listener", SHOWN)
async def test_metadata_shows_the_addresses_of_the_clients_listener(world: World, listener: str) -> None:
    for _ in range(2):  # the second answer is a cached one
        assert _addresses((await world.all_topics(12, listener=listener)).brokers) == SHOWN[listener]
    assert _addresses((await world.all_topics(12, listener=OUTSIDE)).brokers) == SHOWN[OUTSIDE]


@pytest.mark.parametrize("listener", SHOWN)
async def test_the_other_requests_that_name_agents_do_the_same(world: World, listener: str) -> None:
    described = await call(
        world.handlers[DESCRIBE_CLUSTER],
        DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=1),
        1,
        listener=listener,
    )
    assert _addresses(described.brokers) == SHOWN[listener]
    found = await call(
        world.handlers[FIND_COORDINATOR],
        FindCoordinatorRequest(key_type=0, coordinator_keys=["a", "b", "c", "d"]),
        4,
        listener=listener,
    )
    one = await call(
        world.handlers[FIND_COORDINATOR], FindCoordinatorRequest(key_type=0, key="a"), 3, listener=listener
    )
    for answer in (*found.coordinators, one):
        assert SHOWN[listener][answer.node_id] == f"{answer.host}:{answer.port}"
