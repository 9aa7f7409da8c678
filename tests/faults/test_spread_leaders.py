"""The level of leader.spread rises, and commit shards grow, under the load of an idempotent producer on two agents.

Most leaders move, so batches of one partition come through another agent while earlier ones are on their way. Nothing
fails, nothing is stored twice or out of order, and the producer keeps its epoch.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict

import confluent_kafka
import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.config.settings import Settings
from headrace.metastore.api.agents import LEADER_SPREAD
from headrace.metastore.log.features import change_feature
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from tests.agent_process import AgentUnderTest
from tests.confluent_records import consume

TOPICS = [f"spread-{number}" for number in range(5)]
PARTITIONS = 6
RECORDS_OF_A_STEP = 600
SECONDS_MAX = 300
LEVELS = (3, 6, 10)


async def _raise(url: str, level: int) -> None:
    store = await PostgresMetastore.open(url, Settings(metastore_pool_size=2))
    try:
        done = False
        while not done:
            image = await load_image(store.cluster)
            record = change_feature(image, LEADER_SPREAD, level, allow_downgrade=False)
            assert record is not None
            done = await store.cluster.append_records(image.offset, [record])
    finally:
        await store.close()


async def _grow(url: str, shards: int) -> None:
    store = await PostgresMetastore.open(url, Settings(metastore_pool_size=2))
    try:
        while not await store.cluster.grow_commit_shards(shards, await store.cluster.metadata_head()):
            pass
    finally:
        await store.close()


def _leaders(admin: AdminClient) -> dict[tuple[str, int], int]:
    shown = admin.list_topics(timeout=SECONDS_MAX).topics
    return {(name, index): part.leader for name in TOPICS for index, part in shown[name].partitions.items()}


@pytest.mark.requirement("W1", "P4", "W15")
def test_leaders_move_under_an_idempotent_producer(
    two_agents: tuple[AgentUnderTest, AgentUnderTest], agent_settings: dict[str, object]
) -> None:
    url, bootstrap = str(agent_settings["metastore.url"]), ",".join(agent.kafka for agent in two_agents)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS) for name in TOPICS]).values():
        future.result(SECONDS_MAX)
    failed: list[str] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            "topic.metadata.refresh.interval.ms": 100,
            "message.timeout.ms": SECONDS_MAX * 1000,
        }
    )
    sent: dict[tuple[str, int], int] = defaultdict(int)

    def delivered(error: object, message: object) -> None:
        if error is not None:
            failed.append(str(error))

    def produce(count: int) -> None:
        for number in range(count):
            name, index = TOPICS[number % len(TOPICS)], number // len(TOPICS) % PARTITIONS
            value = str(sent[name, index])
            sent[name, index] += 1
            producer.produce(name, value, partition=index, on_delivery=delivered)
            if number % 20 == 0:
                producer.poll(0.02)

    produce(RECORDS_OF_A_STEP)
    seen = [_leaders(admin)]
    for level in LEVELS:
        asyncio.run(_raise(url, level))
        produce(RECORDS_OF_A_STEP)
        seen.append(_leaders(admin))
    asyncio.run(_grow(url, 32))
    produce(RECORDS_OF_A_STEP)
    assert producer.flush(SECONDS_MAX) == 0
    assert failed == []
    assert seen[0] != seen[-1], "leaders moved"
    until = time.monotonic() + SECONDS_MAX
    while not _are_even(leaders := _leaders(admin)):  # agents learn of the last level a moment later
        assert time.monotonic() < until, leaders
        time.sleep(0.1)
    with psycopg.connect(url) as connection:
        states = connection.execute("SELECT DISTINCT producer_id, epoch FROM producer_state").fetchall()
    assert [epoch for _, epoch in states] == [0], "one producer, in its first epoch"
    assert _read(bootstrap, sum(sent.values())) == {key: list(range(count)) for key, count in sent.items()}


def _are_even(leaders: dict[tuple[str, int], int]) -> bool:
    """Return whether each of the two agents leads half of each topic's partitions."""
    shares = ([leaders[name, index] for index in range(PARTITIONS)] for name in TOPICS)
    return all(sorted(Counter(share).values()) == [3, 3] for share in shares)


def _read(bootstrap: str, count: int) -> dict[tuple[str, int], list[int]]:
    """The values of each partition, in the order in which they were read."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    consumer.assign([confluent_kafka.TopicPartition(name, i, 0) for name in TOPICS for i in range(PARTITIONS)])
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    left, until = count, time.monotonic() + SECONDS_MAX
    while left > 0 and time.monotonic() < until:
        for message in consume(consumer, 1_000, 0.5):
            found[message.topic(), message.partition()].append(int(message.value()))
            left -= 1
    consumer.close()
    return dict(found)
