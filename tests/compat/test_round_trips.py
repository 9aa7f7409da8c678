"""Seven real clients write through `headrace dev` and read each other's data, 10,000 records each."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.metastore.partitions.partitioners import PARTITIONERS
from load.dev_server import DevServer
from tests.compat.clients import CLIENTS, Client, pairs
from tests.confluent_records import read

RECORDS = 10_000
PARTITIONS = 4
REPLICAS = 3
"""More than there are agents, so clients see a replica that is no broker."""
PARTITIONER_OF = {"confluent": "crc32", "kcat": "crc32", "sarama": "fnv1a"}
"""The others': murmur2."""


@pytest.fixture(scope="module")
def topics(server: DevServer) -> dict[str, str]:
    """Client name -> the topic that it has written."""
    written = {}
    for client in CLIENTS:
        if client.missing is None:
            topic = f"written-by-{client.name}"
            asyncio.run(server.create_topic(topic, PARTITIONS, replication_factor=REPLICAS))
            client.produce(server.bootstrap, topic, RECORDS)
            written[client.name] = topic
    return written


@pytest.mark.parametrize(
    "reader",
    [  # kafkajs takes seconds to join each group
        pytest.param(client, id=client.name, marks=pytest.mark.slow if client.name == "kafkajs" else ())
        for client in CLIENTS
    ],
)
def test_reads_what_every_client_wrote(reader: Client, server: DevServer, topics: dict[str, str]) -> None:
    if reader.missing is not None:
        pytest.skip(reader.missing)
    for writer, topic in topics.items():
        values = reader.consume(server.bootstrap, topic, RECORDS)
        assert sorted(values) == sorted(value.decode() for _, value in pairs(writer, RECORDS)), writer
        assert_order_per_key(values)


@pytest.mark.requirement("X5")
def test_every_key_is_where_the_writers_partitioner_puts_it(server: DevServer, topics: dict[str, str]) -> None:
    for writer, topic in topics.items():
        name = PARTITIONER_OF.get(writer, "murmur2")
        placed = {partition: keys_of(server.bootstrap, topic, partition) for partition in range(PARTITIONS)}
        assert sum(map(len, placed.values())) == len({key for key, _ in pairs(writer, RECORDS)})
        for partition, keys in placed.items():
            assert {PARTITIONERS[name](key) % PARTITIONS for key in keys} == {partition}, (writer, name)


def keys_of(bootstrap: str, topic: str, partition: int) -> set[bytes]:
    """All keys of a partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "keys", "enable.auto.commit": False})
    place = TopicPartition(topic, partition, 0)
    consumer.assign([place])
    try:
        messages = read(consumer, consumer.get_watermark_offsets(place)[1], 60)
        return {key for message in messages if (key := message.key()) is not None}
    finally:
        consumer.close()


def assert_order_per_key(values: list[str]) -> None:
    """A key's records are in one partition, so a reader sees increasing numbers."""
    last: dict[int, int] = {}
    for number in (int(value.rpartition("-")[2]) for value in values):
        key = number % 100
        assert last.get(key, -1) < number
        last[key] = number
