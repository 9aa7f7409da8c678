"""`__cluster_metadata` followed by consumer groups: they subscribe, commit, and continue where they were."""

from __future__ import annotations

import asyncio

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.replay import apply
from load.dev_server import DevServer
from tests.confluent_records import read
from tests.forked_cluster import shared_cluster
from tests.kafka_clients import KafkaClients

TOPIC = "__cluster_metadata"
TIMEOUT_SECONDS = 300


server = shared_cluster(agents=2, settings={"group.initial.rebalance.delay.ms": 100})


def _read(server: DevServer, group: str, *, until: str) -> list[confluent_kafka.Message]:
    """Subscribe, read until the image has the topic `until`, commit all that was read."""
    messages: list[confluent_kafka.Message] = []
    with KafkaClients(server.bootstrap).consumer({"group.id": group, "enable.auto.commit": False}) as consumer:
        consumer.subscribe([TOPIC])
        while not any(until.encode() in message.value() for message in messages):
            messages += read(consumer, 1, TIMEOUT_SECONDS)
        (stored,) = consumer.commit(messages[-1], asynchronous=False)
        assert (stored.error, stored.offset) == (None, messages[-1].offset() + 1)
    return messages


@pytest.mark.requirement("C1")
def test_a_group_follows_the_log_and_goes_on_where_it_was(server: DevServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    KafkaClients(server.bootstrap).create("first", 2)
    before = _read(server, "auditors", until="first")
    assert [message.offset() for message in before] == list(range(len(before)))

    KafkaClients(server.bootstrap).create("second")
    after = _read(server, "auditors", until="second")
    assert after[0].offset() == len(before), "neither again nor left out"
    image = apply(MetadataImage(), [bytes(message.value()) for message in (*before, *after)])
    assert {"first", "second"} >= set(image.topics_by_name) >= {"first"}

    asked = confluent_kafka.ConsumerGroupTopicPartitions("auditors")
    listed = admin.list_consumer_group_offsets([asked])["auditors"].result(TIMEOUT_SECONDS)
    assert [(p.topic, p.partition, p.offset) for p in listed.topic_partitions] == [(TOPIC, 0, len(before) + len(after))]


def test_aiokafka_commits_there_too(server: DevServer) -> None:
    async def read(count: int) -> list[int]:
        offsets: list[int] = []
        async with aiokafka.AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=server.bootstrap,
            group_id="aio-auditors",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            while len(offsets) < count:
                record = await asyncio.wait_for(consumer.getone(), TIMEOUT_SECONDS)
                offsets.append(record.offset)
            await consumer.commit({aiokafka.TopicPartition(TOPIC, 0): offsets[-1] + 1})
        return offsets

    async def read_twice() -> list[int]:
        return [*await read(2), *await read(2)]

    assert asyncio.run(read_twice()) == [0, 1, 2, 3]
