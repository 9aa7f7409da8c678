"""fetch.min.bytes, the longest wait and the byte limits, as consumers of two client libraries meet them."""

from __future__ import annotations

import asyncio

import confluent_kafka
import kafka

from load.dev_server import DevServer
from tests.confluent_records import consume, read
from tests.kafka_clients import KafkaClients

ENOUGH_BYTES = 100_000
LONG_WAIT_MS = 150_000
A_MOMENT_SECONDS = 1.0
"""Long enough for a broker that does not wait to have answered."""


def write(server: DevServer, topic: str, *values: bytes, partitions: int = 1) -> None:
    KafkaClients(server.bootstrap, {"linger.ms": 0}).produce(topic, values, partitions, one_by_one=True)


def test_librdkafka_gets_nothing_before_min_bytes_are_there(one_agent: DevServer) -> None:
    asyncio.run(one_agent.create_topic("librdkafka-min", 1))
    write(one_agent, "librdkafka-min", b"first")
    waits = {"fetch.wait.max.ms": LONG_WAIT_MS, "socket.timeout.ms": 2 * LONG_WAIT_MS}
    with KafkaClients(one_agent.bootstrap, waits).consumer({"fetch.min.bytes": ENOUGH_BYTES}) as consumer:
        consumer.assign([confluent_kafka.TopicPartition("librdkafka-min", 0, 0)])
        assert consume(consumer, 1, 3 * A_MOMENT_SECONDS) == []
        write(one_agent, "librdkafka-min", b"x" * ENOUGH_BYTES)
        messages = read(consumer, 2, LONG_WAIT_MS / 2000)
        assert [len(message.value()) for message in messages] == [5, ENOUGH_BYTES]


def test_kafka_python_gets_nothing_before_min_bytes_are_there(one_agent: DevServer) -> None:
    asyncio.run(one_agent.create_topic("kafka-python-min", 1))
    write(one_agent, "kafka-python-min", b"first")
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=one_agent.bootstrap.split(","),
        group_id=None,
        auto_offset_reset="earliest",
        fetch_min_bytes=ENOUGH_BYTES,
        fetch_max_wait_ms=LONG_WAIT_MS,
        request_timeout_ms=3 * LONG_WAIT_MS,
        connections_max_idle_ms=4 * LONG_WAIT_MS,
    )
    try:
        consumer.assign([kafka.TopicPartition("kafka-python-min", 0)])
        assert consumer.poll(timeout_ms=int(3000 * A_MOMENT_SECONDS)) == {}
        write(one_agent, "kafka-python-min", b"x" * ENOUGH_BYTES)
        (records,) = consumer.poll(timeout_ms=LONG_WAIT_MS // 2).values()
        assert [len(record.value) for record in records] == [5, ENOUGH_BYTES]
    finally:
        consumer.close()


def test_batches_larger_than_every_limit_come_one_by_one_from_all_partitions(one_agent: DevServer) -> None:
    asyncio.run(one_agent.create_topic("large", 3))
    write(one_agent, "large", *(b"%d" % (n // 3) * 20_000 for n in range(12)), partitions=3)
    limits = dict.fromkeys(("max.partition.fetch.bytes", "fetch.max.bytes", "message.max.bytes"), 1_000)
    messages = KafkaClients(one_agent.bootstrap, limits).read("large", 12, 3)
    for partition in range(3):
        values = [message.value()[:1] for message in messages if message.partition() == partition]
        assert values == [b"0", b"1", b"2", b"3"]
