"""Five agents that each follow a part of the feed: a consumer gets what it waits for, also after one is killed."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator

import confluent_kafka
import pytest

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from load.dev_server import DevServer
from tests.confluent_records import consume
from tests.forked_cluster import ForkedCluster
from tests.kafka_clients import KafkaClients

TOPIC = "followed-in-part"
AGENTS, PARTITIONS, RECORDS = 5, 8, 200
SECONDS_MAX = 300


@pytest.fixture
def cluster(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    settings = {
        "broker.session.timeout.ms": 3_000,
        "broker.heartbeat.interval.ms": 500,
        "group.initial.rebalance.delay.ms": 0,
    }
    place = tmp_path_factory.mktemp("followed")
    with ForkedCluster(postgres_server, place, agents=AGENTS, settings=settings) as running:
        yield running


def _followed(http: str) -> int:
    """Return how many of the commit shards an agent follows; -1 if it has not counted yet."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=SECONDS_MAX) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("headrace_fetch_feed_followed_shards "):
                return int(float(line.split()[1]))
    return -1


@pytest.mark.requirement("W1", "W5")
def test_a_consumer_gets_all_from_agents_that_follow_parts(cluster: DevServer) -> None:
    bootstrap = ",".join(agent.kafka for agent in cluster.agents)
    KafkaClients(bootstrap).create(TOPIC, PARTITIONS)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "fetch.wait.max.ms": 5_000}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    failed: list[str] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": SECONDS_MAX * 1000}
    )
    found: dict[int, list[int]] = defaultdict(list)

    def produce(first: int) -> None:
        for number in range(first, first + RECORDS):
            producer.produce(
                TOPIC,
                str(number // PARTITIONS),
                partition=number % PARTITIONS,
                on_delivery=lambda error, message: failed.append(str(error)) if error is not None else None,
            )
            if number % 40 == 0:
                read(0.1)
                producer.poll(0)
        assert producer.flush(SECONDS_MAX) == 0

    def read(seconds: float) -> None:
        for message in consume(consumer, 1_000, seconds):
            found[message.partition()].append(int(message.value()))

    produce(0)
    os.kill(cluster.agents[0].pid, signal.SIGKILL)
    produce(RECORDS)
    until = time.monotonic() + SECONDS_MAX
    while sum(map(len, found.values())) < 2 * RECORDS and time.monotonic() < until:
        read(0.5)
    consumer.close()
    assert failed == []
    assert found == {index: list(range(2 * RECORDS // PARTITIONS)) for index in range(PARTITIONS)}
    counts = [_followed(agent.http) for agent in cluster.agents[1:]]
    assert all(count > 0 for count in counts), counts
