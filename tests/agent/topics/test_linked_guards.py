"""X14: a copy that a link keeps cannot be written to, deleted, shrunk or grown, and says which link it is."""

from __future__ import annotations

import dataclasses
import random
import uuid
from types import MappingProxyType

import pytest
from kafka.protocol.admin import CreatePartitionsRequest, DeleteRecordsRequest, DeleteTopicsRequest
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import LogChange
from headrace.agent.produce.validate import RuleBook
from headrace.agent.topics.configs.change_requests import AlterConfigs, IncrementalAlterConfigs
from headrace.agent.topics.counts.count_changes import CreatePartitions, PartitionCounts, WantedCount
from headrace.agent.topics.counts.scaling import TopicDoubling, TopicHalving, WantedDoubling
from headrace.agent.topics.deletions import DeleteRecords, DeleteTopics
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_rules import TopicDefaults, TopicRefusal, WantedTopic
from headrace.compactor.cleaning.planner import compacted_partitions
from headrace.compactor.retention import KEEP_ALL, topic_rule
from headrace.config.cluster_values import cluster_settings
from headrace.config.settings import Settings
from headrace.metastore.api.transactions import ProducerEpoch
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage
from headrace.scan.bulk.commit import writable_topics
from headrace.storage.errors import InvalidError
from tests.agent.client_calls import call
from tests.agent.cluster.fake_link_api import FakeLinkApi
from tests.agent.cluster.made_agents import an_agent
from tests.agent.produce.produce_world import ProduceWorld
from tests.agent.produce.test_configs import batch
from tests.agent.topics.configs_world import DELETE, SET, ConfigsWorld
from tests.agent.transactions.test_requests import World as TransactionWorld
from tests.manual_clock import ManualClock
from tests.nouns import nouns

pytestmark = pytest.mark.requirement("X14")
BEFORE = "before it is promoted (headrace link promote old --topics orders)"
POLICY = ErrorCode.policy_violation


class World(ConfigsWorld):
    """One agent; `orders` is a copy of the link `old`, `mine` an ordinary topic."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.api = FakeLinkApi(clock)
        self.api.add_feature()
        self.api.add_link()
        self.api.add_topic("orders", 2, {"link.name": "old", "cleanup.policy": "compact", "retention.ms": "1"})
        self.api.add_topic("mine", 2, {"cleanup.policy": "compact,delete", "retention.ms": "1"})
        self.cluster = an_agent(self.api)
        change, configs = LogChange(self.cluster, nouns(self.api).cluster, clock), EffectiveConfigs(Settings())
        self.alter_configs, self.incremental = AlterConfigs(change, configs), IncrementalAlterConfigs(change, configs)
        self.counts = PartitionCounts(self.cluster, self.api, clock)

    @property
    def image(self) -> MetadataImage:
        return self.api.image


@pytest.fixture
async def world(fake_clock: ManualClock) -> World:
    world = World(fake_clock)
    await world.join()
    return world


async def test_produce_is_refused_with_the_links_name() -> None:
    async with ProduceWorld() as world:
        world.create_topic("orders", 1, link_name="old")
        world.create_topic("mine", 1)
        answers = await world.answers({"orders": {0: batch(0)}, "mine": {0: batch(0)}})
        assert (answers["orders", 0].error, answers["mine", 0].error) == ("policy_violation", "none")
        rules = RuleBook(EffectiveConfigs(Settings())).rules
        topics = world.view.image.topics_by_name
        message = f"topic 'orders' is a copy that link 'old' keeps: it takes no records {BEFORE}"
        assert rules(world.view.image, topics["orders"]).linked == message
        assert rules(world.view.image, topics["mine"]).linked == ""


async def test_transactions_do_not_take_part() -> None:
    world = TransactionWorld()
    answer = await world.producer()
    world.view.image = world.view.head = _with_link(world.view.head, "t")
    added = await world.added(ProducerEpoch(answer.producer_id, answer.producer_epoch), 0, 1)
    assert added == {("t", 0): POLICY, ("t", 1): POLICY}


def _with_link(image: MetadataImage, topic: str) -> MetadataImage:
    return dataclasses.replace(image, configs=MappingProxyType({(2, topic): {"link.name": "old"}}))


async def test_topics_are_deleted_with_their_link_only(world: World) -> None:
    handler = DeleteTopics(world.cluster, nouns(world.api).topics, world.clock)
    by_id = next(topic_id for topic_id, name in world.api.topics.items() if name == "orders")
    topic = DeleteTopicsRequest.DeleteTopicState
    asked = [topic(name="orders", topic_id=None), topic(name="mine", topic_id=None)]
    answers = (await call(handler, DeleteTopicsRequest(topics=asked, timeout_ms=1_000), 6)).responses
    found = {each.name: (each.error_code, each.error_message) for each in answers}
    assert found["mine"] == (0, None)
    assert found["orders"] == (
        POLICY,
        f"topic 'orders' is a copy that link 'old' keeps: it is not deleted {BEFORE}; to delete the copy: headrace link"
        " drop old --topics orders --delete-topics",
    )
    asked = [topic(name=None, topic_id=by_id)]
    (answer,) = (await call(handler, DeleteTopicsRequest(topics=asked, timeout_ms=1_000), 6)).responses
    assert (answer.error_code, set(world.api.topics.values())) == (POLICY, {"orders"})


async def test_records_are_not_deleted(world: World) -> None:
    handler = DeleteRecords(world.cluster, world.api, EffectiveConfigs(Settings()), lambda: lambda key, start: None)  # type: ignore[arg-type]
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    partitions = [topic.DeleteRecordsPartition(partition_index=0, offset=-1)]
    message = DeleteRecordsRequest(topics=[topic(name="orders", partitions=partitions)], timeout_ms=1_000)
    (answer,) = (await call(handler, message, 2)).topics
    assert [each.error_code for each in answer.partitions] == [POLICY]


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_the_count_is_the_sources(world: World, count: int) -> None:
    growing = CreatePartitionsRequest.CreatePartitionsTopic(name="orders", count=count, assignments=None)
    message = CreatePartitionsRequest(topics=[growing], timeout_ms=1_000, validate_only=False)
    (answer,) = (await call(CreatePartitions(world.counts), message, 3)).results
    refusal = (
        "topic 'orders' is a copy that link 'old' keeps: it has the partitions of its source, and no other number"
        f" {BEFORE}"
    )
    assert (answer.error_code, answer.error_message) == (POLICY, refusal)
    (verdict,) = await world.counts.change([WantedCount("orders", count, may_shrink=True)], 9e9, validate_only=False)
    assert verdict == (POLICY, refusal)


async def test_it_neither_doubles_nor_halves(world: World) -> None:
    doubling = TopicDoubling(world.cluster, nouns(world.api), world.clock)
    halving = TopicHalving(world.cluster, world.api, world.clock, EffectiveConfigs(Settings()), Settings)  # type: ignore[arg-type]
    doubled = await doubling.double(WantedDoubling("orders", force=True), 9e9, validate_only=False)
    halved = await halving.begin_halving("orders", 9e9)
    assert [verdict.code for verdict in (doubled, halved)] == [POLICY, POLICY]
    assert "keeps: it has the partitions of its source" in (halved.message or "")


async def test_only_a_link_sets_or_removes_link_name(world: World) -> None:
    for operation, value in ((DELETE, None), (SET, "new"), (SET, "")):
        (answer,) = await world.change((2, "orders", [("link.name", operation, value)]))
        assert (answer.error_code, answer.error_message) == (
            POLICY, "link.name cannot be changed: link 'old' keeps this copy, until it is promoted"
        )  # fmt: skip
    (answer,) = await world.change((2, "mine", [("link.name", SET, "old")]))
    assert answer.error_code == POLICY
    (answer,) = await world.change((2, "orders", [("link.name", SET, "old"), ("retention.ms", SET, "5")]))
    assert (answer.error_code, world.image.topic_configs("orders")["retention.ms"]) == (0, "5")
    assert (await world.replace(2, "orders", ("retention.ms", "6"))).error_code == 0
    assert dict(world.image.topic_configs("orders")) == {"link.name": "old", "retention.ms": "6"}
    creation = TopicCreation(
        world.cluster, nouns(world.api).topics, world.clock, random.Random(1), lambda: TopicDefaults(1, 1)
    )
    (refused,) = await creation.create([WantedTopic("new", uuid.uuid4(), configs=[("link.name", "old")])], deadline=9e9)
    assert isinstance(refused, TopicRefusal)
    assert refused.code is ErrorCode.invalid_config


async def test_a_name_that_a_link_copies_is_not_created_automatically(world: World) -> None:
    creation = TopicCreation(
        world.cluster, nouns(world.api).topics, world.clock, random.Random(1), lambda: TopicDefaults(1, 1)
    )

    async def code(name: str, *, is_automatic: bool) -> str:
        (judged,) = await creation.create([WantedTopic(name, uuid.uuid4())], deadline=9e9, is_automatic=is_automatic)
        return judged.message if isinstance(judged, TopicRefusal) else ""

    assert await code("orders.eu", is_automatic=True) == (
        "link 'old' copies a topic of this name: it is not created automatically"
    )
    assert await code("payments", is_automatic=True) == ""
    assert await code("orders.eu", is_automatic=False) == "", "on purpose it is"


async def test_retention_and_cleaning_leave_it_to_the_source(world: World) -> None:
    assert topic_rule(world.image, "orders", set()) == KEEP_ALL
    assert topic_rule(world.image, "mine", set()) != KEEP_ALL
    names = {key >> 24: topic.name for topic in world.image.topics_by_name.values() if (key := topic.key(0))}
    assert {names[key >> 24] for key in compacted_partitions(_decided(world.image))} == {"mine"}


def _decided(image: MetadataImage) -> MetadataImage:
    """The image with all values that cleaning needs."""
    configs = EffectiveConfigs(Settings())
    values = {name: configs.cluster_value({}, name) for name in cluster_settings()}
    return dataclasses.replace(image, configs=MappingProxyType({**image.configs, (4, ""): values}))


async def test_bulk_writes_are_refused_before_they_begin(world: World) -> None:
    with pytest.raises(InvalidError, match="topic 'orders' is a copy that link 'old' keeps: it takes no records"):
        writable_topics(world.image, Settings(), ["orders"])
    assert writable_topics(world.image, Settings(), None).keys() == {"mine"}
