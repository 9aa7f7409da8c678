"""A replication factor that changes by reassignment, as Terraform's provider does it: one agent, three, one address.

The provider reads the replicas that Metadata shows and sends a shorter list of them back, or adds other brokers.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.agent.apis.cluster import CONTROLLER_ROWS
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.apis.parts import ControllerParts
from headrace.agent.cluster.log_change import LogChange
from headrace.agent.cluster.shared_address import SharedAddress
from headrace.agent.topics.counts.count_changes import CreatePartitions, PartitionCounts
from headrace.agent.topics.metadata.described_topics import DescribedTopics, DescribeTopicPartitions
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.config.bounds import STORE_REPLICAS, VIRTUAL_NODE_ID
from headrace.config.settings import Settings
from headrace.metastore.api.agents import SHARED_ADDRESS, FeatureRange, Listener
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.metastore.log.image import Assignment, TopicImage
from headrace.metastore.log.reassignment import completions
from headrace.metastore.log.shown_counts import SHOWN_REPLICAS_MAX, is_agent, resized, shown_count
from headrace.metastore.log.snapshot import encode_snapshot, load_snapshot
from headrace.protocol.api_keys import ApiKey
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.agent.topics.membership_world import ask
from tests.manual_clock import ManualClock
from tests.nouns import nouns

OUTSIDE, INSIDE = "PLAINTEXT", "INTERNAL"
ABLE = {SHARED_ADDRESS: FeatureRange(1, 1)}
STORE = tuple(STORE_REPLICAS)
SHAPES = ("one agent", "three agents", "one address")
PARTITIONS = 4
SECONDS = timedelta(seconds=30)


class Shape:
    """The handlers of agent 1, asked in the real protocol."""

    def __init__(self, clock: ManualClock, shape: str) -> None:
        self.clock, self.api = clock, FakeClusterApi(clock)
        self.cluster = an_agent(self.api)
        self.is_shared = shape == "one address"
        for node_id in range(1, 2 if shape == "one agent" else 4):
            self.api.add_agent(node_id, "zone-a", listeners=_listeners(node_id), features=ABLE)
        shared = SharedAddress(self.cluster, lambda: self.is_shared, INSIDE, _listeners(1))
        parts = ControllerParts(
            cluster=self.cluster,
            metastore=nouns(self.api),
            in_force=SettingsInForce(Settings(), lambda: self.cluster.image),
            change=LogChange(self.cluster, self.api, clock),
            is_active_controller=lambda: True,
            shared=shared,
        )
        creation = TopicCreation(self.cluster, self.api, clock, random.Random(5), lambda: TopicDefaults(1, 1))
        self._dispatcher = Dispatcher(lambda: self.cluster.image)
        for key, handler in {
            ApiKey.METADATA: Metadata(
                self.cluster, DescribedTopics(self.cluster, creation, lambda: False), shared, counts=None
            ),
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: DescribeTopicPartitions(self.cluster, shared, None),
            ApiKey.CREATE_PARTITIONS: CreatePartitions(PartitionCounts(self.cluster, self.api, clock)),
            **{key: row.handler(parts) for key, row in CONTROLLER_ROWS.items()},
        }.items():
            self._dispatcher.register(key, handler)

    async def ask(self, key: int, version: int, **fields: Any) -> Any:
        return await ask(self._dispatcher, key, version, received_at=self.clock.monotonic(), **fields)

    async def replicas(self) -> list[tuple[int, ...]]:
        """What the provider sees, the same in both answers."""
        topics = [("MetadataRequestTopic", {"name": "t", "topic_id": None})]
        more = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        (topic,) = (await self.ask(ApiKey.METADATA, 12, topics=topics, **more)).topics
        for partition in topic.partitions:
            assert partition.replica_nodes == partition.isr_nodes
            assert partition.leader_id == partition.replica_nodes[0]
            assert not partition.offline_replicas
        (described,) = (
            await self.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[("TopicRequest", {"name": "t"})], cursor=None)
        ).topics
        found = [tuple(partition.replica_nodes) for partition in topic.partitions]
        assert [tuple(partition.replica_nodes) for partition in described.partitions] == found
        return found

    async def reassign(self, *targets: tuple[int, ...], **more: Any) -> list[ErrorCode]:
        """AlterPartitionReassignments of the partitions from 0 on; then the active controller's turn."""
        partitions = [
            ("ReassignablePartition", {"partition_index": index, "replicas": target})
            for index, target in enumerate(targets)
        ]
        topics = [("ReassignableTopic", {"name": "t", "partitions": partitions})]
        answer = await self.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, topics=topics, **more)
        assert answer.error_code is ErrorCode.none
        await self.api.append_records(self.cluster.image.offset, completions(await self.cluster.catch_up()))
        await self.cluster.catch_up()
        return [partition.error_code for partition in answer.responses[0].partitions]

    async def change_factor(self, factor: int) -> list[ErrorCode]:
        """Send the first of the shown replicas, or all of them and further brokers, as buildNewReplicas does."""
        shown = await self.replicas()
        brokers = [VIRTUAL_NODE_ID] if self.is_shared else sorted(self.cluster.image.agents)
        targets = []
        for replicas in shown:
            unused = [node_id for node_id in brokers if node_id not in replicas]
            assert factor - len(replicas) <= len(unused), "not enough brokers"
            targets.append((*replicas, *unused)[:factor] if factor > len(replicas) else replicas[:factor])
        return await self.reassign(*targets)


def _listeners(node_id: int) -> tuple[Listener, ...]:
    return Listener(OUTSIDE, "lb.example", 9092, 0), Listener(INSIDE, f"10.0.0.{node_id}", 9094, 0)


@pytest.fixture(params=SHAPES)
async def shape(request: pytest.FixtureRequest, fake_clock: ManualClock) -> Shape:
    shape = Shape(fake_clock, request.param)
    shape.api.add_topic("t", PARTITIONS, factor=3)
    await shape.cluster.catch_up()
    return shape


async def test_a_smaller_factor_is_shown_and_new_partitions_have_it(shape: Shape) -> None:
    """The provider reads the factor of all partitions and fails if they differ, also after more partitions."""
    for factor in (2, 1):
        assert await shape.change_factor(factor) == [ErrorCode.none] * PARTITIONS
        assert [len(replicas) for replicas in await shape.replicas()] == [factor] * PARTITIONS
    topics = [("CreatePartitionsTopic", {"name": "t", "count": PARTITIONS + 2, "assignments": None})]
    answer = await shape.ask(ApiKey.CREATE_PARTITIONS, 3, topics=topics, validate_only=False, timeout=SECONDS)
    assert [result.error_code for result in answer.results] == [ErrorCode.none]
    await shape.cluster.catch_up()
    assert [len(replicas) for replicas in await shape.replicas()] == [1] * (PARTITIONS + 2)
    assert load_snapshot(encode_snapshot(shape.cluster.image)) == shape.cluster.image


async def test_behind_one_address_a_larger_factor_is_shown(fake_clock: ManualClock) -> None:
    """Replicas of the object store are no brokers, so a client names them from what it knows."""
    shape = Shape(fake_clock, "one address")
    shape.api.add_topic("t", PARTITIONS, factor=3)
    await shape.cluster.catch_up()
    for count in (5, SHOWN_REPLICAS_MAX, 2):
        target = (VIRTUAL_NODE_ID, *STORE[: count - 1])
        assert await shape.reassign(*[target] * PARTITIONS) == [ErrorCode.none] * PARTITIONS
        assert await shape.replicas() == [target] * PARTITIONS
    shape.is_shared = False
    shape.api.add_topic("other")  # a new image: answers are cached by image
    await shape.cluster.catch_up()
    shown = await shape.replicas()
    assert [len(replicas) for replicas in shown] == [2] * PARTITIONS
    assert all(set(replicas) <= {1, 2, 3} for replicas in shown), "agents, once clients see them"


async def test_what_is_shown_changes_nothing(shape: Shape) -> None:
    before = await shape.replicas()
    assert await shape.reassign(*before, allow_replication_factor_change=False) == [ErrorCode.none] * PARTITIONS
    assert await shape.replicas() == before
    topic = shape.cluster.image.topics_by_name["t"]
    if shape.is_shared:
        assert not topic.assignments, "no partition is tied to what its topic says anyway"


async def test_the_number_is_kept_if_the_client_asks_for_it(shape: Shape) -> None:
    before = await shape.replicas()
    smaller = [replicas[:2] for replicas in before]
    refused = await shape.reassign(*smaller, allow_replication_factor_change=False)
    assert refused == [ErrorCode.invalid_replication_factor] * PARTITIONS
    assert await shape.replicas() == before


@pytest.mark.parametrize("target", [(VIRTUAL_NODE_ID,) * 3, (STORE[0], STORE[1]), (VIRTUAL_NODE_ID, 9), ()], ids=str)
async def test_what_no_client_is_shown_is_refused(shape: Shape, target: tuple[int, ...]) -> None:
    before = await shape.replicas()
    assert await shape.reassign(target) == [ErrorCode.invalid_replica_assignment]
    assert await shape.replicas() == before


async def test_the_virtual_node_is_refused_where_clients_see_agents(shape: Shape) -> None:
    codes = await shape.reassign((VIRTUAL_NODE_ID, STORE[0]))
    assert codes == [ErrorCode.none if shape.is_shared else ErrorCode.invalid_replica_assignment]


async def test_behind_one_address_preferred_agents_stay(fake_clock: ManualClock) -> None:
    shape = Shape(fake_clock, "three agents")
    shape.api.add_topic("t", 1, factor=1)
    await shape.cluster.catch_up()
    assert await shape.reassign((3, 1, 2)) == [ErrorCode.none]
    shape.is_shared = True
    for count, kept in ((2, (3, 1)), (4, (3, 1, *STORE[:2])), (1, (3,))):
        assert await shape.reassign((VIRTUAL_NODE_ID, *STORE[: count - 1])) == [ErrorCode.none]
        assert shape.cluster.image.topics_by_name["t"].assignment(0) == Assignment(kept)
        assert [len(replicas) for replicas in await shape.replicas()] == [count]


def _topic(replicas: Sequence[int]) -> TopicImage:
    """One partition, of a topic with a factor of 3."""
    assignments = {0: Assignment(tuple(replicas))} if replicas else {}
    return TopicImage(uuid.UUID(int=1), 1, "t", 1, 1, (0,), assignments, replication_factor=3)


@given(replicas=st.lists(st.sampled_from((1, 2, 3, VIRTUAL_NODE_ID, *STORE[:3])), unique=True), count=st.integers(1, 9))
def test_any_assignment_is_resized_to_what_was_asked_for(replicas: list[int], count: int) -> None:
    """No agent is added, the order of those that stay is the same, and nothing is listed twice."""
    topic = _topic(replicas)
    found = resized(topic, 0, count)
    agents = [node_id for node_id in replicas if is_agent(node_id)]
    assert [node_id for node_id in found if is_agent(node_id)] == agents[:count]
    assert len(set(found)) == len(found)
    after = _topic(found)
    assert shown_count(after, 0) == count
    assert resized(after, 0, count) == found
