"""Seven real clients write 10,000 records each into one topic, and each of them reads the records of all."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from headrace.metastore.partitions.placement import PARTITIONERS
from load.dev_server import DevServer
from tests.compat.clients import CLIENTS, Client, pairs
from tests.kafka_clients import KafkaClients

RECORDS = 10_000
PARTITIONS = 4
TOPIC = "written-by-all"
REPLICAS = 3
"""More than there are agents, so clients see a replica that is no broker."""
PARTITIONER_OF = {"confluent": "crc32", "kcat": "crc32", "sarama": "fnv1a"}
"""The others': murmur2."""


@pytest.fixture(scope="module")
def writers(server: DevServer) -> list[str]:
    """Names of the clients that have written the topic."""
    asyncio.run(server.create_topic(TOPIC, PARTITIONS, replication_factor=REPLICAS))
    present = [client for client in CLIENTS if client.missing is None]
    for client in present:
        client.produce(server.bootstrap, TOPIC, RECORDS)
    return [client.name for client in present]


@pytest.mark.parametrize(
    "reader",
    [  # kafkajs takes seconds to join a group
        pytest.param(client, id=client.name, marks=pytest.mark.slow if client.name == "kafkajs" else ())
        for client in CLIENTS
    ],
)
def test_reads_what_every_client_wrote(reader: Client, server: DevServer, writers: list[str]) -> None:
    if reader.missing is not None:
        pytest.skip(reader.missing)
    found: dict[str, list[str]] = {writer: [] for writer in writers}
    for value in reader.consume(server.bootstrap, TOPIC, RECORDS * len(writers)):
        found[writer_of(value)].append(value)
    for writer, values in found.items():
        assert sorted(values) == sorted(value.decode() for _, value in pairs(writer, RECORDS)), writer
        assert_order_per_key(values)


@pytest.mark.requirement("X5")
def test_every_key_is_where_the_writers_partitioner_puts_it(server: DevServer, writers: list[str]) -> None:
    placed = [keys_of(server.bootstrap, partition) for partition in range(PARTITIONS)]
    for writer in writers:
        name = PARTITIONER_OF.get(writer, "murmur2")
        assert sum(len(keys[writer]) for keys in placed) == len({key for key, _ in pairs(writer, RECORDS)})
        for partition, keys in enumerate(placed):
            assert {PARTITIONERS[name](key) % PARTITIONS for key in keys[writer]} == {partition}, (writer, name)


def keys_of(bootstrap: str, partition: int) -> dict[str, set[bytes]]:
    """Return the keys of a partition by the client that wrote them."""
    found: dict[str, set[bytes]] = defaultdict(set)
    for message in KafkaClients(bootstrap).read_partition(TOPIC, partition):
        key, value = message.key(), message.value()
        if key is not None and value is not None:
            found[writer_of(value.decode())].add(key)
    return found


def writer_of(value: str) -> str:
    """Return the client that wrote this value."""
    return value.rpartition("-")[0]


def assert_order_per_key(values: list[str]) -> None:
    """A key's records are in one partition, so a reader sees increasing numbers."""
    last: dict[int, int] = {}
    for number in (int(value.rpartition("-")[2]) for value in values):
        key = number % 100
        assert last.get(key, -1) < number
        last[key] = number
