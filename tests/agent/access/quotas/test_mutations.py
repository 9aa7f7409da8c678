"""controller_mutation_rate: which topics of a request are admitted, and the answer for the others."""

from __future__ import annotations

import datetime
import random
import uuid
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.access.quotas.enforcement import QuotaEnforcer, QuotaMetrics, mutation_quotas
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.topics.counts.count_changes import CreatePartitions, PartitionCounts
from headrace.agent.topics.deletions import DeleteTopics
from headrace.agent.topics.topic_creation import CreateTopics, TopicCreation
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.protocol.api_keys import ApiKey
from tests.agent.access.quotas.test_enforcement import image
from tests.agent.topics.membership_world import World as ClusterWorld
from tests.agent.topics.membership_world import ask
from tests.manual_clock import ManualClock

OVER, NONE = 89, 0
TIMEOUT = datetime.timedelta(seconds=30)


class World:
    """Handlers on a real metastore, with one partition per second for each user, ten of them at once."""

    def __init__(self, metastore: PostgresMetastore, clock: ManualClock) -> None:
        self.clock = clock
        self.cluster = ClusterWorld(metastore)
        enforcer = QuotaEnforcer(clock, QuotaMetrics(CollectorRegistry()), lambda _: None)
        enforcer.on_image(image({"controller_mutation_rate": 1.0}, user=None))
        view: Any = self.cluster.view
        creation = TopicCreation(view, metastore.topics, clock, random.Random(1), lambda: TopicDefaults(2, 1))
        mutations = mutation_quotas(enforcer)
        self.dispatcher = Dispatcher()
        handlers = {
            ApiKey.CREATE_TOPICS: CreateTopics(creation, EffectiveConfigs(Settings()), mutations),
            ApiKey.CREATE_PARTITIONS: CreatePartitions(PartitionCounts(view, metastore.topics, clock), mutations),
            ApiKey.DELETE_TOPICS: DeleteTopics(view, metastore.topics, clock, mutations),
        }
        for api_key, handler in handlers.items():
            self.dispatcher.register(api_key, handler)

    async def ask(self, api_key: int, version: int, /, **fields: Any) -> Any:
        return await ask(self.dispatcher, api_key, version, received_at=self.clock.monotonic(), **fields)

    async def create(self, version: int, *names: str, count: int, validate_only: bool = False) -> list[int]:
        topics = [
            (
                "CreatableTopic",
                {"name": n, "num_partitions": count, "replication_factor": 1, "assignments": (), "configs": ()},
            )
            for n in names
        ]
        answer = await self.ask(
            ApiKey.CREATE_TOPICS, version, topics=topics, timeout=TIMEOUT, validate_only=validate_only
        )
        return [int(topic.error_code) for topic in answer.topics]


@pytest.mark.requirement("X2")
async def test_topics_are_admitted_while_nothing_is_owed(metastore: PostgresMetastore) -> None:
    clock = ManualClock()
    world = World(metastore, clock)
    assert await world.create(7, "checked", count=100, validate_only=True) == [NONE]
    assert await world.create(7, "a", "b", "c", count=8) == [NONE, NONE, OVER], "16 of 10"
    assert await world.create(7, "c", count=1) == [OVER]
    clock.jump(6.0)
    assert await world.create(7, "c", count=-1) == [NONE]
    assert sorted((await world.cluster.view.catch_up()).topics_by_name) == ["a", "b", "c"]


@pytest.mark.requirement("X2")
async def test_older_clients_are_throttled_instead(metastore: PostgresMetastore) -> None:
    world = World(metastore, ManualClock())
    assert await world.create(5, "a", "b", "c", count=20) == [NONE] * 3


@pytest.mark.requirement("X2")
async def test_partitions_and_deletions_count_as_well(metastore: PostgresMetastore) -> None:
    clock = ManualClock()
    world = World(metastore, clock)
    assert await world.create(7, "a", "b", count=2) == [NONE, NONE]
    wanted = [("CreatePartitionsTopic", {"name": n, "count": 12, "assignments": None}) for n in ("a", "b")]
    grown = await world.ask(ApiKey.CREATE_PARTITIONS, 3, topics=wanted, timeout=TIMEOUT, validate_only=False)
    assert [int(topic.error_code) for topic in grown.results] == [NONE, OVER]
    names = [("DeleteTopicState", {"name": n, "topic_id": None}) for n in ("a", "b")]
    deleted = await world.ask(ApiKey.DELETE_TOPICS, 6, topics=names, timeout=TIMEOUT)
    assert [int(topic.error_code) for topic in deleted.responses] == [OVER, OVER]
    clock.jump(10.0)
    deleted = await world.ask(ApiKey.DELETE_TOPICS, 6, topics=names, timeout=TIMEOUT)
    assert [int(topic.error_code) for topic in deleted.responses] == [NONE, OVER], "12 partitions of 6"
    assert isinstance(deleted.responses[0].topic_id, uuid.UUID)
    older = await world.ask(ApiKey.DELETE_TOPICS, 4, topic_names=("b",), timeout=TIMEOUT)
    assert [int(topic.error_code) for topic in older.responses] == [NONE]
