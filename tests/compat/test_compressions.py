"""Every codec of the protocol, written by librdkafka and read by librdkafka and aiokafka."""

from __future__ import annotations

import asyncio

import aiokafka
import confluent_kafka
import pytest

from load.dev_server import DevServer
from tests.compat.clients import TIMEOUT_SECONDS
from tests.confluent_records import read

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 500


@pytest.mark.parametrize("codec", CODECS)
def test_what_librdkafka_compresses_both_can_read(one_agent: DevServer, codec: str) -> None:
    topic = f"codec-{codec}"
    sent = [f"{codec} {n} ".encode() * 20 for n in range(RECORDS)]
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": one_agent.bootstrap, "compression.type": codec, "enable.idempotence": True}
    )
    for value in sent:
        producer.produce(topic, value, on_delivery=lambda error, _: error and failures.append(error))
    assert (producer.flush(TIMEOUT_SECONDS), failures) == (0, [])
    assert _confluent(one_agent.bootstrap, topic) == sent
    assert asyncio.run(_aiokafka(one_agent.bootstrap, topic)) == sent


def _confluent(bootstrap: str, topic: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "codecs"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    messages = read(consumer, RECORDS, TIMEOUT_SECONDS)
    consumer.close()
    return [message.value() for message in messages]


async def _aiokafka(bootstrap: str, topic: str) -> list[bytes]:
    values: list[bytes] = []
    async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        partition = aiokafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        while len(values) < RECORDS:
            values += [
                r.value for batch in (await consumer.getmany(timeout_ms=TIMEOUT_SECONDS * 1000)).values() for r in batch
            ]
    return values
