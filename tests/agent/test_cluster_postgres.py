"""Two agents on a real metastore: they join, see each other and each other's topics, and leave."""

from __future__ import annotations

import random

import pytest
from prometheus_client import CollectorRegistry

from agent.admin.topic_creation import TopicCreation
from agent.admin.topic_rules import AcceptedTopic, TopicDefaults, WantedTopic
from agent.cluster.cluster import Cluster
from agent.cluster.follower import MetadataFollower
from agent.cluster.membership import BrokerState, Identity, Membership
from metastore.postgres.store import PostgresMetastore
from storage.clock import SystemClock


def an_agent(metastore: PostgresMetastore, node_id: int | None, seed: int) -> Cluster:
    follower = MetadataFollower(metastore)
    membership = Membership(
        metastore,
        follower,
        Identity(node_id, "127.0.0.1", 9000 + seed, "a"),
        heartbeat_interval_ms=3_000,
        session_timeout_ms=18_000,
        clock=SystemClock(),
        rng=random.Random(seed),
        registry=CollectorRegistry(),
    )
    return Cluster(metastore.cluster_id, metastore.commit_shards, follower, membership)


async def test_agents_meet_in_the_log(metastore: PostgresMetastore) -> None:
    one, two = an_agent(metastore, None, 1), an_agent(metastore, 7, 2)
    await one.start()
    await two.start()
    assert two.node_id == 7
    assert one.node_id not in (-1, 7)
    await one.catch_up()
    assert one.image == two.image
    assert {a.node_id for a in one.image.live_agents()} == {one.node_id, 7}
    assert one.coordinator("g") == two.coordinator("g")
    await two.stop()
    await one.catch_up()
    assert [a.node_id for a in one.image.live_agents()] == [one.node_id]
    await one.stop()
    assert one.membership.state is BrokerState.NOT_RUNNING


@pytest.mark.requirement("C1")
async def test_topics_of_two_agents_never_take_one_name(metastore: PostgresMetastore) -> None:
    clusters = [an_agent(metastore, None, seed) for seed in (1, 2)]
    creations = [
        TopicCreation(cluster, metastore, SystemClock(), random.Random(n), TopicDefaults(2, 1))
        for n, cluster in enumerate(clusters)
    ]
    judgements = []
    for creation in creations:
        wanted = [WantedTopic("orders", creation.new_topic_id(), configs=[("retention.ms", "1000")])]
        judgements += await creation.create(wanted, deadline=SystemClock().monotonic() + 10)
    assert [isinstance(judged, AcceptedTopic) for judged in judgements] == [True, False]
    image = await clusters[0].catch_up()
    assert image == clusters[1].image
    assert image.topic_configs("orders") == {"retention.ms": "1000"}
    assert len(image.topics_by_name["orders"].leader_epochs) == 2
