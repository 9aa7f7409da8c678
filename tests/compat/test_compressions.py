"""Every codec of the protocol, written by librdkafka and read by librdkafka and aiokafka."""

from __future__ import annotations

import asyncio

import aiokafka
import pytest

from load.dev_server import DevServer
from tests.compat.clients import TIMEOUT_SECONDS
from tests.kafka_clients import KafkaClients

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 500


@pytest.mark.parametrize("codec", CODECS)
def test_what_librdkafka_compresses_both_can_read(one_agent: DevServer, codec: str) -> None:
    topic = f"codec-{codec}"
    sent = [f"{codec} {n} ".encode() * 20 for n in range(RECORDS)]
    KafkaClients(one_agent.bootstrap, {"compression.type": codec, "enable.idempotence": True}).produce(topic, sent)
    assert [m.value() for m in KafkaClients(one_agent.bootstrap).read(topic, RECORDS)] == sent
    assert asyncio.run(_aiokafka(one_agent.bootstrap, topic)) == sent


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
