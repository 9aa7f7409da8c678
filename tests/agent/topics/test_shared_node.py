"""All agents with one address: clients see one virtual node, once every agent can forward."""

from __future__ import annotations

import random
from typing import Any

import pytest
from kafka.protocol.admin import DescribeClusterRequest, DescribeLogDirsRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from headrace.agent.cluster.shared_address import SharedAddress, cannot_forward
from headrace.agent.topics.configs.rules import ConfigResource, ResourceType, why_no_such_resource
from headrace.agent.topics.metadata.described_topics import DescribedTopics
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.agent.topics.metadata.routing_requests import DescribeCluster, FindCoordinator
from headrace.agent.topics.partition_requests import DescribeLogDirs
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.config.bounds import NODE_ID_MAX, VIRTUAL_NODE_ID
from headrace.metastore.api.agents import SHARED_ADDRESS, FeatureRange, Listener
from headrace.metastore.log.kip631_records import FenceBrokerRecord
from tests.agent.client_calls import call, versions_of
from tests.agent.topics.test_cluster import DESCRIBE_CLUSTER, FIND_COORDINATOR, METADATA, World
from tests.manual_clock import ManualClock

OUTSIDE, INSIDE = "PLAINTEXT", "INTERNAL"
ABLE = {SHARED_ADDRESS: FeatureRange(1, 1)}
JAVA_MAX = 2**31 - 1


def _listeners(node_id: int) -> tuple[Listener, ...]:
    return Listener(OUTSIDE, "lb.example", 9092, 0), Listener(INSIDE, f"10.0.0.{node_id}", 9094, 0)


class Shared:
    """Two agents behind one address; the handlers are those of agent 1."""

    def __init__(self, clock: ManualClock) -> None:
        self.world = World(clock)
        self.is_set = True
        self.address = SharedAddress(self.world.cluster, lambda: self.is_set, INSIDE, _listeners(1))
        cluster, api = self.world.cluster, self.world.api
        creation = TopicCreation(cluster, api, clock, random.Random(5), lambda: TopicDefaults(1, 1))
        self.world.handlers |= {
            METADATA: Metadata(cluster, DescribedTopics(cluster, creation, lambda: False), self.address, counts=None),
            FIND_COORDINATOR: FindCoordinator(cluster, self.address),
            DESCRIBE_CLUSTER: DescribeCluster(cluster, self.address),
        }

    async def shown(self, listener: str = OUTSIDE, version: int = 12) -> Any:
        return await self.world.all_topics(version, listener=listener)


@pytest.fixture
async def shared(fake_clock: ManualClock) -> Shared:
    made = Shared(fake_clock)
    for node_id in (1, 2):
        made.world.api.add_agent(node_id, "zone-a", listeners=_listeners(node_id), features=ABLE)
    made.world.api.add_topic("orders", 20)
    await made.world.cluster.catch_up()
    return made


def test_the_virtual_id_is_safe_for_java_clients_and_is_no_agents() -> None:
    """A Java client connects to a coordinator under the id Integer.MAX_VALUE - node id."""
    assert 0 <= JAVA_MAX - VIRTUAL_NODE_ID != VIRTUAL_NODE_ID
    assert min(VIRTUAL_NODE_ID, JAVA_MAX - VIRTUAL_NODE_ID) > NODE_ID_MAX


@pytest.mark.parametrize("version", versions_of(METADATA))
async def test_one_node_leads_everything(shared: Shared, version: int) -> None:
    answer = await shared.shown(version=version)
    (node,) = answer.brokers
    assert (node.node_id, node.host, node.port) == (VIRTUAL_NODE_ID, "lb.example", 9092)
    assert getattr(node, "rack", None) is None
    assert version == 0 or answer.controller_id == VIRTUAL_NODE_ID
    for partition in answer.topics[0].partitions:
        assert partition.leader_id == VIRTUAL_NODE_ID
        assert partition.replica_nodes == partition.isr_nodes == [VIRTUAL_NODE_ID]
        assert not getattr(partition, "offline_replicas", None)


async def test_it_is_coordinator_and_controller(shared: Shared) -> None:
    asked = FindCoordinatorRequest(key_type=0, coordinator_keys=["a", "b"])
    found = await call(shared.world.handlers[FIND_COORDINATOR], asked, 4)
    assert {(each.node_id, each.host, each.port) for each in found.coordinators} == {
        (VIRTUAL_NODE_ID, "lb.example", 9092)
    }
    asked = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=1)
    described = await call(shared.world.handlers[DESCRIBE_CLUSTER], asked, 1)
    assert described.controller_id == VIRTUAL_NODE_ID
    assert [broker.broker_id for broker in described.brokers] == [VIRTUAL_NODE_ID]


async def test_the_listener_for_agents_shows_each_agent(shared: Shared) -> None:
    answer = await shared.shown(INSIDE)
    assert {(node.node_id, node.host) for node in answer.brokers} == {(1, "10.0.0.1"), (2, "10.0.0.2")}


@pytest.mark.parametrize(
    "other",
    [
        {"listeners": _listeners(3)},
        {"listeners": _listeners(3)[:1], "features": ABLE},
        {"listeners": _listeners(2), "features": ABLE},
    ],
    ids=["of an older release", "without an address for agents", "with the address of another agent"],
)
async def test_it_is_shown_only_while_every_live_agent_can_forward(shared: Shared, other: dict[str, Any]) -> None:
    api, cluster = shared.world.api, shared.world.cluster
    api.add_agent(3, **other)
    await cluster.catch_up()
    assert {node.node_id for node in (await shared.shown()).brokers} == {1, 2, 3}
    assert shared.address.forwards(OUTSIDE), "what clients send to the wrong agent is forwarded already"
    assert 3 in [agent.node_id for agent in cannot_forward(cluster.image.live_agents(), INSIDE)]
    api.append(FenceBrokerRecord(broker_id=3, broker_epoch=api.agents[3].epoch))
    await cluster.catch_up()
    assert {node.node_id for node in (await shared.shown()).brokers} == {VIRTUAL_NODE_ID}


async def test_without_the_setting_or_the_listener_for_agents_all_is_as_before(shared: Shared) -> None:
    shared.is_set = False
    shared.world.api.add_topic("more")  # a new image: answers are cached by image
    await shared.world.cluster.catch_up()
    assert {node.node_id for node in (await shared.shown()).brokers} == {1, 2}
    assert not shared.address.forwards(OUTSIDE)
    alone = SharedAddress(shared.world.cluster, lambda: True, None, _listeners(1))
    assert (alone.node(OUTSIDE), alone.forwards(OUTSIDE)) == (None, False)


async def test_log_dirs_are_those_of_all_agents(shared: Shared) -> None:
    class Sizes:
        async def partition_sizes(self, keys: list[int]) -> list[int]:
            return [7] * len(keys)

    sizes: Any = Sizes()
    for address, count in ((shared.address, 20), (None, 0)):
        handler = DescribeLogDirs(shared.world.cluster, sizes, "s3://b", address)
        answer = await call(handler, DescribeLogDirsRequest(topics=None), 4)
        found = [partition for topic in answer.results[0].topics for partition in topic.partitions]
        assert len(found) == count, "this agent is not registered, so it leads nothing"


def test_a_config_of_the_virtual_node_is_refused_with_what_to_do(shared: Shared) -> None:
    resource = ConfigResource(ResourceType.BROKER, str(VIRTUAL_NODE_ID))
    refused = why_no_such_resource(shared.world.cluster.image, resource)
    assert refused is not None
    assert "change a config for all brokers" in (refused.message or "")
