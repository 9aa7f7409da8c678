"""Five real clients that read a partition from given offsets to its end, also over batches without records.

Each is a function (bootstrap, topic, starts, end) that returns what it read, by the offset at which it began.
librdkafka, aiokafka, kafka-python and the Java client end where their position is `end`. kafkajs has no position to ask
for, and stays in front of a batch without records until a record follows it: it needs a record at `end - 1`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka

from load.tools import JAVA_LIBRARIES, KAFKAJS, why_missing
from tests.java_program import java_command

TIMEOUT_SECONDS = 400
"""For all starts together."""
WAIT_MS = 20
"""How long the agent holds a fetch at the end, and so the next reading."""

Record = tuple[int, str, str | None]
"""Offset, key, value."""
Readings = dict[int, list[Record]]
"""By the offset at which the reading began."""


@dataclass(frozen=True)
class Reader:
    """`missing`: why it cannot run here."""

    name: str
    read: Callable[[str, str, Sequence[int], int], Readings]
    missing: str | None = None
    needs_last_record: bool = False


def _record(offset: int, key: bytes, value: bytes | None) -> Record:
    return offset, key.decode(), None if value is None else value.decode()


def confluent(bootstrap: str, topic: str, starts: Sequence[int], end: int) -> Readings:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True, "fetch.wait.max.ms": WAIT_MS}
    )
    try:
        return {start: _confluent_from(consumer, topic, start, end) for start in starts}
    finally:
        consumer.close()


def _confluent_from(consumer: confluent_kafka.Consumer, topic: str, start: int, end: int) -> list[Record]:
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, start)])
    found: list[Record] = []
    while (message := consumer.poll(TIMEOUT_SECONDS)) is not None:
        if (error := message.error()) is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
            assert message.offset() == end
            return found
        found.append(_record(message.offset(), message.key(), message.value()))
    raise AssertionError(f"no end: start={start} found={found}")


def _aiokafka(bootstrap: str, topic: str, starts: Sequence[int], end: int) -> Readings:
    async def run() -> Readings:
        partition = aiokafka.TopicPartition(topic, 0)
        readings: Readings = {}
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, fetch_max_wait_ms=WAIT_MS) as consumer:
            consumer.assign([partition])
            for start in starts:
                consumer.seek(partition, start)
                found = readings[start] = []
                while await consumer.position(partition) < end:
                    for records in (await consumer.getmany(partition, timeout_ms=200)).values():
                        found += [_record(record.offset, record.key, record.value) for record in records]
        return readings

    return asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))


def _kafka_python(bootstrap: str, topic: str, starts: Sequence[int], end: int) -> Readings:
    partition = kafka.TopicPartition(topic, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap.split(","), fetch_max_wait_ms=WAIT_MS)
    consumer.assign([partition])
    readings: Readings = {}
    deadline = time.monotonic() + TIMEOUT_SECONDS
    for start in starts:
        consumer.seek(partition, start)
        found = readings[start] = []
        while (position := consumer.position(partition)) < end:
            assert time.monotonic() < deadline, f"no end: start={start} position={position}"
            for records in consumer.poll(timeout_ms=200).values():
                found += [_record(record.offset, record.key, record.value) for record in records]
    consumer.close()
    return readings


def _program(command: Sequence[str], **environment: str) -> Readings:
    """A program that prints a line per record."""
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    readings: Readings = {}
    for line in done.stdout.splitlines():
        start, *record = line.split()
        found = readings.setdefault(int(start), [])
        if record != ["end"]:
            offset, key, value = record
            found.append((int(offset), key, None if value == "null" else value))
    return readings


def _java(bootstrap: str, topic: str, starts: Sequence[int], end: int) -> Readings:
    program = java_command(Path(__file__).with_name("ReadFrom.java"), f"{JAVA_LIBRARIES}/*")
    return _program([*program, bootstrap, topic, ",".join(map(str, starts)), str(end)])


def _kafkajs(bootstrap: str, topic: str, starts: Sequence[int], end: int) -> Readings:
    program = str(Path(__file__).with_name("kafkajs_read_from.cjs"))
    environment = {"KAFKAJS": str(KAFKAJS), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    return _program(["node", program, bootstrap, topic, ",".join(map(str, starts)), str(end)], **environment)


READERS = [
    Reader("confluent", confluent),
    Reader("aiokafka", _aiokafka),
    Reader("kafka_python", _kafka_python),
    Reader("java", _java, why_missing("kafka-clients")),
    Reader("kafkajs", _kafkajs, why_missing("kafkajs"), needs_last_record=True),
]
