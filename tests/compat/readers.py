"""Five real clients that read a partition from given offsets to its end, also over batches without records.

Each is a function (bootstrap, topic, starts, end) that returns what it read, by the offset at which it began.
librdkafka, aiokafka, kafka-python and the Java client end where their position is `end`; librdkafka moves it only by
records and markers. kafkajs has no position to ask
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

from tests.java_program import run_java
from tests.tools import JAVA_LIBRARIES, KAFKAJS, why_missing

TIMEOUT_SECONDS = 400
"""Limit in seconds for all starts together."""
WAIT_MS = 20
"""How long the agent holds a fetch at the end, and so the next reading."""

Record = tuple[int, str, str | None]
"""Offset, key, value."""
Readings = dict[int, list[Record]]
"""Readings by the offset at which the reading began."""


@dataclass(frozen=True)
class Reader:
    """`tool`: what it needs beyond the packages of Python."""

    name: str
    read: Callable[[str, str, Sequence[int], int], Readings]
    tool: str | None = None
    needs_last_record: bool = False

    @property
    def missing(self) -> str | None:
        """Return why it cannot run here."""
        return why_missing(self.tool) if self.tool else None


def _record(offset: int, key: bytes, value: bytes | None) -> Record:
    return offset, key.decode(), None if value is None else value.decode()


def confluent(
    bootstrap: str, topic: str, starts: Sequence[int], end: int, isolation_level: str = "read_uncommitted"
) -> Readings:
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": isolation_level}
    consumer = confluent_kafka.Consumer(settings | {"enable.partition.eof": True, "fetch.wait.max.ms": WAIT_MS})
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
            (position,) = consumer.position([confluent_kafka.TopicPartition(topic, 0)])
            assert position.offset == end, f"no position at the end: start={start} position={position.offset}"
            return found
        offset, key = message.offset(), message.key()
        assert offset is not None
        assert key is not None
        found.append(_record(offset, key, message.value()))
    raise AssertionError(f"no end: start={start} found={found}")


def aiokafka_from(
    bootstrap: str, topic: str, starts: Sequence[int], end: int, isolation_level: str = "read_uncommitted"
) -> Readings:
    settings = {"bootstrap_servers": bootstrap, "fetch_max_wait_ms": WAIT_MS, "isolation_level": isolation_level}

    async def run() -> Readings:
        partition = aiokafka.TopicPartition(topic, 0)
        readings: Readings = {}
        async with aiokafka.AIOKafkaConsumer(**settings) as consumer:
            consumer.assign([partition])
            for start in starts:
                consumer.seek(partition, start)
                found = readings[start] = []
                while await consumer.position(partition) < end:
                    for records in (await consumer.getmany(partition, timeout_ms=200)).values():
                        found += [_record(record.offset, record.key, record.value) for record in records]
        return readings

    return asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))


def kafka_python_from(
    bootstrap: str, topic: str, starts: Sequence[int], end: int, isolation_level: str = "read_uncommitted"
) -> Readings:
    partition = kafka.TopicPartition(topic, 0)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap.split(","), fetch_max_wait_ms=WAIT_MS, isolation_level=isolation_level
    )
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


def _readings(done: subprocess.CompletedProcess[str]) -> Readings:
    """Return what a program read that prints a line for each record."""
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
    program = Path(__file__).with_name("ReadFrom.java")
    starts_text = ",".join(map(str, starts))
    return _readings(run_java(program, f"{JAVA_LIBRARIES}/*", bootstrap, topic, starts_text, str(end)))


def _kafkajs(bootstrap: str, topic: str, starts: Sequence[int], end: int) -> Readings:
    program = str(Path(__file__).with_name("kafkajs_read_from.cjs"))
    command = ["node", program, bootstrap, topic, ",".join(map(str, starts)), str(end)]
    environment = os.environ | {"KAFKAJS": str(KAFKAJS), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    return _readings(
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    )


READERS = [
    Reader("confluent", confluent),
    Reader("aiokafka", aiokafka_from),
    Reader("kafka_python", kafka_python_from),
    Reader("java", _java, "kafka-clients"),
    Reader("kafkajs", _kafkajs, "kafkajs", needs_last_record=True),
]
