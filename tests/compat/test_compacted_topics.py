"""Real clients on a topic that `headrace dev` cleaned by key: its last offsets lost every record.

A client that reads to the end (Kafka Connect and Kafka Streams do) must reach it from any offset, also where only
batches without records are left.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from load.dev_server import DevServer
from load.tools import JAVA_LIBRARIES, why_missing
from tests.compat.clients import CLIENTS, TIMEOUT_SECONDS, Client

pytestmark = pytest.mark.xdist_group("compat")

TOPIC = "compacted"
END = 6
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.ms": "1",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1",
}
SENT = [("a", "1"), ("b", "1"), ("a", "2"), ("b", None), ("c", "1"), ("c", None)]
LEFT = [(2, b"a", b"2")]


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """A server with the topic after the cleaner did its work: one record is left of six."""
    settings = {"linger.ms": 25, "log.cleaner.backoff.ms": 200, "group.initial.rebalance.delay.ms": 100}
    with DevServer(tmp_path_factory.mktemp("dev"), settings=settings) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, config=CONFIGS)])[TOPIC].result(TIMEOUT_SECONDS)
        send(running.bootstrap, SENT)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while confluent_from(running.bootstrap, 0) != LEFT:
            assert time.monotonic() < deadline, "the topic was not cleaned"
            time.sleep(0.3)
        yield running


def send(bootstrap: str, records: list[tuple[str, str | None]]) -> None:
    """One request each."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for key, value in records:
        producer.produce(TOPIC, key=key, value=value)
        assert producer.flush(TIMEOUT_SECONDS) == 0


def confluent_from(bootstrap: str, offset: int) -> list[tuple[int, bytes, bytes]]:
    """All records from `offset` to the end of the partition, as librdkafka sees it."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True, "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, offset)])
    found = []
    try:
        while (message := consumer.poll(TIMEOUT_SECONDS)) is not None:
            if (error := message.error()) is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                assert message.offset() == END
                return found
            found.append((message.offset(), message.key(), message.value()))
    finally:
        consumer.close()
    raise AssertionError(f"no end: offset={offset} found={found}")


def aiokafka_from(bootstrap: str, offset: int) -> list[tuple[int, bytes, bytes]]:
    """The same, until its position is the end."""

    async def run() -> list[tuple[int, bytes, bytes]]:
        partition, found = aiokafka.TopicPartition(TOPIC, 0), []
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, offset)
            while await consumer.position(partition) < END:
                for records in (await consumer.getmany(partition, timeout_ms=200)).values():
                    found += [(record.offset, record.key, record.value) for record in records]
        return found

    return asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))


def kafka_python_from(bootstrap: str, offset: int) -> list[tuple[int, bytes, bytes]]:
    """The same."""
    partition, found = kafka.TopicPartition(TOPIC, 0), []
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap.split(","))
    consumer.assign([partition])
    consumer.seek(partition, offset)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while consumer.position(partition) < END:
        assert time.monotonic() < deadline, f"no end: offset={offset} position={consumer.position(partition)}"
        for records in consumer.poll(timeout_ms=200).values():
            found += [(record.offset, record.key, record.value) for record in records]
    consumer.close()
    return found


@pytest.mark.requirement("L3")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("read", [confluent_from, aiokafka_from, kafka_python_from], ids=lambda read: read.__name__)
def test_every_offset_leads_to_the_end(read: object, cleaned: DevServer) -> None:
    for offset in range(END):
        assert callable(read)
        assert read(cleaned.bootstrap, offset) == (LEFT if offset <= LEFT[0][0] else [])


@pytest.mark.requirement("L2")
def test_a_record_without_a_key_is_refused(cleaned: DevServer) -> None:
    refused: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": cleaned.bootstrap})
    producer.produce(TOPIC, value="no key", on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert [error.code() for error in refused] == [confluent_kafka.KafkaError.INVALID_RECORD]


@pytest.mark.requirement("L2")
def test_a_java_producer_knows_which_record_had_no_key(cleaned: DevServer) -> None:
    if reason := why_missing("kafka-clients"):
        pytest.skip(reason)
    program = Path(__file__).with_name("KeylessRecord.java")
    command = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", f"{JAVA_LIBRARIES}/*", str(program)]
    finished = subprocess.run(
        [*command, cleaned.bootstrap, TOPIC], capture_output=True, text=True, timeout=2 * TIMEOUT_SECONDS
    )
    assert finished.returncode == 0, finished.stderr
    first, second, third = finished.stdout.splitlines()
    assert second == "InvalidRecordException: compacted topics take no record without a key"
    assert first == third
    assert first.startswith("KafkaException: Failed to append record because it was part of a batch")


@pytest.mark.requirement("L3")
@pytest.mark.timeout(600)
def test_every_client_reads_on_behind_the_removed_records(cleaned: DevServer) -> None:
    """The last test of the module: it adds a record."""
    send(cleaned.bootstrap, [("d", "1")])
    readers: list[Client] = [client for client in CLIENTS if client.missing is None]
    assert {client.name: client.consume(cleaned.bootstrap, TOPIC, 2) for client in readers} == {
        client.name: ["2", "1"] for client in readers
    }
