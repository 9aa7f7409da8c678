"""Everything that a topic holds, read back by two unlike consumers after the faults are over."""

from __future__ import annotations

import asyncio
import time

import aiokafka
import confluent_kafka
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.torture.checker import Read

READ_SECONDS = 120.0
CALL_SECONDS, RETRY_SECONDS = 10.0, 0.2


def read_with_confluent(bootstrap: str, topic: str, partitions: int) -> list[Read]:
    """All records of each partition, in its order. RuntimeError when the end is not reached in time."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "torture", "enable.auto.commit": False, "log_level": 0}
    )
    until = time.monotonic() + READ_SECONDS
    try:
        ends = ends_of(bootstrap, topic, partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        found: list[Read] = []
        left = {partition for partition, end in ends.items() if end}
        while left:
            if time.monotonic() > until:
                raise RuntimeError(f"confluent stopped before the end: left={sorted(left)} read={len(found)}")
            for message in consumer.consume(5_000, 0.5):
                if message.error() is None:
                    record = _read_of(message)
                    found.append(record)
                    if record.offset >= ends[record.partition] - 1:
                        left.discard(record.partition)
        return found
    finally:
        consumer.close()


def ends_of(bootstrap: str, topic: str, partitions: int, *, committed: bool = False) -> dict[int, int]:
    """Partition -> high watermark, or last stable offset. KafkaException if no agent answers in time:
    right after faults librdkafka may find a connection closed, and says so for the whole call.
    """
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    asked = {TopicPartition(topic, index): OffsetSpec.latest() for index in range(partitions)}  # type: ignore[no-untyped-call]
    until = time.monotonic() + READ_SECONDS
    while True:
        try:
            answers = admin.list_offsets(asked, isolation_level=level, request_timeout=CALL_SECONDS)
            return {place.partition: answer.result().offset for place, answer in answers.items()}
        except KafkaException:
            if time.monotonic() > until:
                raise
            time.sleep(RETRY_SECONDS)


def _read_of(message: confluent_kafka.Message) -> Read:
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert value is not None
    return Read(partition, offset, value.decode())


def read_with_aiokafka(bootstrap: str, topic: str, partitions: int) -> list[Read]:
    """The same with aiokafka."""
    return asyncio.run(_read_with_aiokafka(bootstrap, topic, partitions))


async def _read_with_aiokafka(bootstrap: str, topic: str, partitions: int) -> list[Read]:
    """Read with aiokafka from the start, by its reset policy: a seek_to_beginning that meets the look-up of
    another policy's offset in flight is undone by its answer (aiokafka 0.14, Fetcher._update_fetch_positions).
    """
    until = time.monotonic() + READ_SECONDS
    async with aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        metadata_max_age_ms=1_000,
        request_timeout_ms=5_000,
    ) as consumer:
        assigned = [aiokafka.TopicPartition(topic, partition) for partition in range(partitions)]
        consumer.assign(assigned)
        ends = await consumer.end_offsets(assigned)
        found: list[Read] = []
        left = {place for place, end in ends.items() if end}
        while left:
            if time.monotonic() > until:
                stuck = {place.partition: (await consumer.position(place), ends[place]) for place in left}
                raise RuntimeError(f"aiokafka stopped before the end: partition -> (position, end) {stuck}")
            for place, records in (await consumer.getmany(timeout_ms=1_000)).items():
                found += [Read(place.partition, record.offset, record.value.decode()) for record in records]
                if records[-1].offset >= ends[place] - 1:
                    left.discard(place)
        return found
