"""A topic doubles while agents lag, are cut off and come back: no count that a client is shown goes back.

Real memberships, followers and handlers of Metadata, on a metastore in memory with calls that take a while. A client
asks one agent after another. Planted bugs are found. The agents answer at once, or pause after each piece of work as
they do for many topics.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.cluster import Cluster
from headrace.agent.cluster.newest_counts import NONE, NewestCounts
from headrace.agent.limits.work_slices import WorkSlices
from headrace.agent.topics.counts.scaling import TopicDoubling, WantedDoubling
from headrace.agent.topics.metadata.described_topics import DescribedTopics
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.metastore.log.own_records import DoubleTopicRecord
from headrace.storage.errors import UnavailableError
from tests.agent.client_calls import call
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.manual_clock import ManualClock
from tests.nouns import NOUNS, nouns
from tests.planted import PlantedBugs, Trial

pytestmark = pytest.mark.requirement("X5")
METADATA = 3
SEEDS = range(12)
COUNT = 4
STEPS = 120


class Wire:
    """One agent's connection to the metastore: slow, and cut at times."""

    def __init__(self, api: FakeClusterApi, rng: random.Random) -> None:
        self.api, self.rng, self.is_cut = api, rng, False
        self.clock = api.clock

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self

        async def called(*args: Any, **more: Any) -> Any:
            await self.clock.sleep(self.rng.choice((0.01, 0.05, 0.3)))
            if self.is_cut:
                raise UnavailableError("cut off")
            return await getattr(self.api, name)(*args, **more)

        return called


class Agent:
    """Agent with the handler that clients ask."""

    def __init__(self, api: FakeClusterApi, node_id: int, rng: random.Random, *, pauses: bool = False) -> None:
        """`pauses`: its answers take a while."""
        self.wire = Wire(api, rng)
        self.cluster: Cluster = an_agent(self.wire, node_id, seed=node_id)  # type: ignore[arg-type]
        creation = TopicCreation(self.cluster, api, api.clock, rng, lambda: TopicDefaults(1, 1))
        newest = NewestCounts(self.cluster, api.clock, self.cluster.may_be_behind)
        self.metadata = Metadata(
            self.cluster,
            DescribedTopics(self.cluster, creation, lambda: False),
            newest=newest,
            shared=None,
            counts=None,
        )
        if pauses:
            pace = random.Random(rng.random())

            async def pause() -> None:
                await api.clock.sleep(pace.choice((0.0, 0.1, 0.7)))

            self.metadata.slices = lambda: WorkSlices(pause, units_max=1)

    async def shown(self) -> int | None:
        """The count; None if the agent does not say."""
        topics = [MetadataRequest.MetadataRequestTopic(name="t")]
        message = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        (topic,) = (await call(self.metadata, message, 12)).topics
        assert topic.error_code in (0, ErrorCode.leader_not_available)
        return None if topic.error_code else len(topic.partitions)


class Doubling:
    """Three agents and a topic that doubles at some time."""

    def __init__(self, clock: ManualClock, seed: int, *, pauses: bool = False) -> None:
        self.clock, self.rng = clock, random.Random(seed)
        self.api = FakeClusterApi(clock)
        self.api.append(FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=4))
        self.api.add_topic("t", COUNT)
        self.agents = [Agent(self.api, node_id, self.rng, pauses=pauses) for node_id in (1, 2, 3)]
        self.doubling: asyncio.Task[Any] | None = None

    async def run(self) -> str | None:
        """Return what went back, if anything did."""
        for agent in self.agents:
            await self.clock.run(agent.cluster.start())
        newest = 0
        for step in range(STEPS):
            await self.clock.advance(self.rng.choice((0.01, 0.2, 1.0)))
            self._fence_silent()
            if step == 20:
                topics = TopicDoubling(self.agents[0].cluster, nouns(self.api), self.clock)
                self.doubling = asyncio.create_task(
                    topics.double(WantedDoubling("t"), self.clock.monotonic() + 60, validate_only=False)
                )
            last = self.agents[2]
            if self.rng.random() < 0.03:
                last.wire.is_cut = not last.wire.is_cut
            agent = self.rng.choice(self.agents[:2] if last.wire.is_cut else self.agents)
            count = await self.clock.run(agent.shown())
            if count is not None and count < newest:
                return f"step={step} node_id={agent.cluster.node_id} count={count} shown_before={newest}"
            newest = max(newest, count or 0)
        last.wire.is_cut = False
        assert self.doubling is not None
        assert (await self.clock.run(self.doubling)).code is ErrorCode.none
        assert await self.clock.run(last.shown()) == 2 * COUNT
        return None

    def _fence_silent(self) -> None:
        for node_id, agent in self.api.agents.items():
            if not agent.fenced and self.clock.monotonic() >= agent.held_until:
                self.api._set_fenced(node_id, True)

    async def stop(self) -> None:
        if self.doubling is not None:
            self.doubling.cancel()
        for agent in self.agents:
            agent.wire.is_cut = False
            await self.clock.run(agent.cluster.stop())


async def what_went_back(seed: int, *, pauses: bool = False) -> str | None:
    """Return what went back, on another clock."""
    doubling = Doubling(ManualClock(), seed, pauses=pauses)
    try:
        return await doubling.run()
    finally:
        await doubling.stop()


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_count_goes_back(seed: int) -> None:
    assert await what_went_back(seed) is None


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_count_goes_back_in_answers_that_take_a_while(seed: int) -> None:
    assert await what_went_back(seed, pauses=True) is None


async def _nobody(self: FakeClusterApi, offset: int) -> list[int]:
    return []


PLANTED = {
    "agents are not waited for": (FakeClusterApi, "agents_behind", _nobody),
    "the announcement is not looked at": (NewestCounts, "_doubling", lambda self: NONE),
    "an agent without a lease describes at once": (Cluster, "may_be_behind", lambda self: False),
}


BUGS = PlantedBugs("newest counts", most=500)


@BUGS.cases(PLANTED)
async def test_planted_bugs_are_found(bug: str, trial: Trial) -> None:
    trial.plant(*PLANTED[bug])
    for seed in trial.seeds():
        trial.saw(await what_went_back(seed))


async def test_a_topic_is_not_described_without_an_answer_of_the_metastore(fake_clock: ManualClock) -> None:
    """Only one that was announced; others are shown as they are known."""
    doubling = Doubling(fake_clock, 1)
    agent = doubling.agents[0]
    await fake_clock.run(agent.cluster.start())
    agent.wire.is_cut = True
    assert await fake_clock.run(agent.shown()) == COUNT
    agent.wire.is_cut = False
    (topic,) = agent.cluster.image.topics_by_id.values()
    doubling.api.append(DoubleTopicRecord(topic_id=topic.topic_id, partition_count=2 * COUNT))
    await fake_clock.run(agent.cluster.catch_up())
    assert await fake_clock.run(agent.shown()) == COUNT
    agent.wire.is_cut = True
    assert await fake_clock.run(agent.shown()) is None
    await doubling.stop()


async def test_what_is_announced_while_an_answer_waits_for_the_log_counts(
    fake_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer also names a topic that the image lacks: the agent catches up, learns of the announcement, and then
    the metastore does not answer. So the topic may have doubled.
    """
    doubling = Doubling(fake_clock, 1)
    agent = doubling.agents[0]
    await fake_clock.run(agent.cluster.start())
    (topic,) = agent.cluster.image.topics_by_id.values()
    real = Cluster.catch_up

    async def catch_up(self: Cluster) -> Any:
        monkeypatch.undo()
        doubling.api.append(DoubleTopicRecord(topic_id=topic.topic_id, partition_count=2 * COUNT))
        await real(self)
        agent.wire.is_cut = True
        raise UnavailableError("cut off")

    monkeypatch.setattr(Cluster, "catch_up", catch_up)
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in ("t", "unknown")]
    message = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    answer = await fake_clock.run(call(agent.metadata, message, 12))
    assert [each.error_code for each in answer.topics] == [ErrorCode.leader_not_available] * 2
    await doubling.stop()


async def test_without_a_lease_the_metastore_is_not_waited_for_long(fake_clock: ManualClock) -> None:
    doubling = Doubling(fake_clock, 1)
    agent = doubling.agents[0]
    await fake_clock.run(agent.cluster.start())
    agent.wire.is_cut = True
    await fake_clock.advance(30)
    assert agent.cluster.may_be_behind()
    doubling.api.latency = 100.0
    agent.wire.is_cut = False
    asked_at = fake_clock.monotonic()
    assert await fake_clock.run(agent.shown()) == COUNT
    assert fake_clock.monotonic() - asked_at <= 1.0
    doubling.api.latency = 0.0
    await doubling.stop()
