"""The replication factor of a topic: stored as asked for, and shown with any number of agents."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.admin import CreateTopicsRequest
from kio.schema.errors import ErrorCode

from headrace.agent.topics.metadata.described_topics import DescribedTopics
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.agent.topics.metadata.metadata_response import SHOWN_REPLICAS_MAX, shown_replicas
from headrace.agent.topics.topic_creation import CreateTopics, TopicCreation
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.config.bounds import NODE_ID_MAX, STORE_REPLICAS, VIRTUAL_NODE_ID
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.kip631_records import FenceBrokerRecord, UnfenceBrokerRecord
from headrace.metastore.log.snapshot import encode_snapshot, load_snapshot
from tests.agent.client_calls import call, versions_of
from tests.agent.topics.test_cluster import METADATA, World
from tests.manual_clock import ManualClock

Topic = CreateTopicsRequest.CreatableTopic
STORE = list(STORE_REPLICAS)
JAVA_MAX = 2**31 - 1


class Factors(World):
    """A world that creates topics, with a default factor of 2 and the strict rule if asked."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.defaults = TopicDefaults(1, 2)
        creation = TopicCreation(self.cluster, self.api, clock, random.Random(3), lambda: self.defaults)
        self.create_topics = CreateTopics(creation, EffectiveConfigs(Settings()))
        self.handlers[METADATA] = Metadata(
            self.cluster, DescribedTopics(self.cluster, creation, lambda: True), shared=None, counts=None
        )

    async def create(self, name: str, factor: int) -> Any:
        wanted = Topic(name=name, num_partitions=4, replication_factor=factor, assignments=[], configs=[])
        message = CreateTopicsRequest(topics=[wanted], timeout_ms=1_000, validate_only=False)
        (topic,) = (await call(self.create_topics, message, 7)).topics
        return topic

    async def partitions(self, name: str, version: int = 12, **more: Any) -> Any:
        (topic,) = (await self.metadata(name, version=version, **more)).topics
        return topic.partitions


@pytest.fixture
async def world(fake_clock: ManualClock) -> Factors:
    world = Factors(fake_clock)
    world.api.add_agent(1, "zone-a")
    await world.cluster.catch_up()
    return world


@pytest.mark.parametrize("version", versions_of(METADATA))
async def test_what_was_asked_for_is_shown_with_one_agent(world: Factors, version: int) -> None:
    """Terraform's provider counts the replicas of the first partition, Strimzi's topic operator those of all."""
    assert (await world.create("t", 3)).replication_factor == 3
    for partition in await world.partitions("t", max(version, 4)):
        assert partition.replica_nodes == partition.isr_nodes == [1, *STORE[:2]], "none of them lags"
        assert not getattr(partition, "offline_replicas", None)
        assert partition.leader_id == 1


async def test_with_enough_agents_replicas_are_agents_and_their_number_stays_when_one_goes(world: Factors) -> None:
    for node_id in (2, 3, 4):
        world.api.add_agent(node_id, "zone-b")
    await world.create("t", 3)
    for partition in await world.partitions("t"):
        assert partition.replica_nodes[0] == partition.leader_id
        assert len(set(partition.replica_nodes) & {1, 2, 3, 4}) == 3
    zoned = await world.partitions("t", client_id="c,zone=zone-a")
    assert {tuple(partition.replica_nodes) for partition in zoned} == {(1, 2, 3)}
    for node_id in (2, 3):
        world.api.append(FenceBrokerRecord(broker_id=node_id, broker_epoch=world.api.agents[node_id].epoch))
    await world.cluster.catch_up()
    for partition in await world.partitions("t"):
        assert sorted(partition.replica_nodes) == sorted(partition.isr_nodes) == [1, 4, STORE[0]]


async def test_the_default_is_stored_when_the_topic_is_created(world: Factors) -> None:
    assert (await world.create("asked", -1)).replication_factor == 2
    await world.metadata("automatic", allow_auto_topic_creation=True)
    world.defaults = TopicDefaults(1, 1)
    image = load_snapshot(encode_snapshot(world.cluster.image))
    assert {name: topic.replication_factor for name, topic in image.topics_by_name.items()} == {
        "asked": 2,
        "automatic": 2,
    }


async def test_strict_refuses_as_kafka_does(world: Factors) -> None:
    world.defaults = TopicDefaults(1, 2, is_strict=True)
    for asked, factor in ((3, 3), (-1, 2)):
        refused = await world.create("t", asked)
        assert refused.error_code == ErrorCode.invalid_replication_factor
        assert refused.error_message == (
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be"
            " reached because only 1 broker(s) are registered."
        )
    (automatic,) = (await world.metadata("auto", allow_auto_topic_creation=True)).topics
    assert automatic.error_code == ErrorCode.invalid_replication_factor
    assert (await world.create("one", 1)).error_code == 0
    world.api.add_agent(2)
    world.api.append(FenceBrokerRecord(broker_id=2, broker_epoch=world.api.agents[2].epoch))
    assert (await world.create("two", -1)).error_code == 0, "an agent that restarts is counted"
    world.api.append(UnfenceBrokerRecord(broker_id=2, broker_epoch=world.api.agents[2].epoch))
    assert (await world.create("three", 3)).error_code == ErrorCode.invalid_replication_factor


def test_strict_is_a_setting() -> None:
    assert not TopicDefaults.of(Settings()).is_strict
    assert TopicDefaults.of(Settings(replication_factor_strict=True)).is_strict


async def test_the_largest_factor_is_stored_but_not_shown_in_full(world: Factors) -> None:
    """Metadata of 10,000 partitions with 32,767 replicas each would be gigabytes."""
    assert (await world.create("t", 32_767)).replication_factor == 32_767
    assert world.cluster.image.topics_by_name["t"].replication_factor == 32_767
    assert {len(partition.replica_nodes) for partition in await world.partitions("t")} == {SHOWN_REPLICAS_MAX}


def test_no_broker_and_no_connection_of_a_java_client_has_an_id_of_the_store() -> None:
    assert min(STORE_REPLICAS) > max(NODE_ID_MAX, VIRTUAL_NODE_ID)
    assert max(STORE_REPLICAS) < JAVA_MAX - VIRTUAL_NODE_ID, "that of the coordinator with the largest id"


@given(
    factor=st.integers(1, 40),
    nodes=st.sets(st.integers(0, 60), min_size=1, max_size=40).map(sorted),
    data=st.data(),
)
def test_replicas_are_distinct_and_agents_come_first(factor: int, nodes: list[int], data: st.DataObject) -> None:
    leader = data.draw(st.sampled_from(nodes))
    shown = shown_replicas(factor, leader, nodes)
    assert len(set(shown)) == len(shown) == min(factor, SHOWN_REPLICAS_MAX)
    assert shown[0] == leader
    agents = [node for node in shown if node in nodes]
    assert len(agents) == min(len(nodes), len(shown))
    assert list(shown) == agents + STORE[: len(shown) - len(agents)]
