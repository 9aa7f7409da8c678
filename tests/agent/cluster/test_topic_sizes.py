"""Stored bytes are shown by the active controller, for a bounded number of topics, and sum up to all."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.cluster.controller.cluster_metrics import TopicSizes
from headrace.agent.cluster.follower import MetadataFollower
from headrace.agent.cluster.topic_traffic import OTHER_TOPICS
from headrace.metastore.api.reports import TopicSize
from headrace.storage.errors import UnavailableError
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.manual_clock import ManualClock


class Sizes:
    """One controller's export, over answers that a test sets."""

    def __init__(self, clock: ManualClock, topics_max: int = 2) -> None:
        cluster = FakeClusterApi(clock)
        for name in ("orders", "clicks"):
            cluster.add_topic(name, 2)
        self.follower = MetadataFollower(cluster)
        self.registry = CollectorRegistry()
        self.answer: list[TopicSize] | UnavailableError = []
        self.limits: list[int] = []
        api: Any = self
        self.sizes = TopicSizes(api, topics_max, self.registry)

    async def topic_sizes(self, limit: int) -> list[TopicSize]:
        self.limits.append(limit)
        if isinstance(self.answer, UnavailableError):
            raise self.answer
        return self.answer

    def id_of(self, name: str) -> uuid.UUID:
        return self.follower.image.topics_by_name[name].topic_id

    async def refresh(self) -> dict[str, float]:
        await self.sizes.refresh(1, self.follower.image, True)
        return self.shown()

    def shown(self) -> dict[str, float]:
        (family,) = (found for found in self.registry.collect() if found.name == "headrace_topic_stored_bytes")
        return {sample.labels["topic"]: sample.value for sample in family.samples}

    def total(self) -> float | None:
        return self.registry.get_sample_value("headrace_stored_bytes", {"scope": "cluster"})


@pytest.fixture
async def world(fake_clock: ManualClock) -> Sizes:
    world = Sizes(fake_clock)
    await world.follower.catch_up()
    return world


async def test_topics_that_are_not_named_are_one_sum(world: Sizes) -> None:
    world.answer = [
        TopicSize(world.id_of("orders"), 70, 100, 4),
        TopicSize(world.id_of("clicks"), 20, 100, 4),
    ]
    assert await world.refresh() == {"orders": 70, "clicks": 20, OTHER_TOPICS: 10}
    assert (world.total(), world.limits) == (100, [2])
    world.answer = [TopicSize(uuid.uuid4(), 70, 100, 2), TopicSize(world.id_of("clicks"), 30, 100, 2)]
    assert await world.refresh() == {"clicks": 30, OTHER_TOPICS: 70}, "a topic without a name yet, or deleted"


async def test_a_standby_shows_nothing(world: Sizes) -> None:
    world.answer = [TopicSize(world.id_of("orders"), 70, 70, 1)]
    await world.refresh()
    world.sizes.stand_by()
    assert (world.shown(), world.total()) == ({}, None)


async def test_a_metastore_that_does_not_answer_leaves_the_last_sizes(world: Sizes) -> None:
    world.answer = [TopicSize(world.id_of("orders"), 70, 70, 1)]
    before = await world.refresh()
    world.answer = UnavailableError("no connection")
    assert await world.refresh() == before


def test_zero_switches_it_off(fake_clock: ManualClock) -> None:
    world = Sizes(fake_clock, topics_max=0)
    assert not world.sizes.judge(world.follower.image)
