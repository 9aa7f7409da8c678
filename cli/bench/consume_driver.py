"""A process that consumes with librdkafka: `python -m headrace.cli.bench.consume_driver ORDER`.

Place: started by target_bench.py, so that the client's CPU is not the target's. It assigns itself all partitions: no
group.
Invariant of the order of records: a producer numbers its records from 0 without gaps, so every gap is a loss, every
repetition a duplicate, and a number below its predecessor that was not read yet is out of order.
Invariant: every record that librdkafka hands out is counted; what is checked besides is the order's `check`.
"""

from __future__ import annotations

import sys
from array import array
from collections import defaultdict
from collections.abc import Sequence

import msgspec
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, Message, TopicPartition

from headrace.cli.bench.orders import (
    KEY,
    NUMBERS,
    OFFSETS,
    ConsumeAnswer,
    ConsumeOrder,
    DriverInput,
    percentile,
    producer_of,
)
from headrace.storage.clock import Clock, SystemClock


class ReadOrder:
    """One partition's records, as they are read."""

    def __init__(self) -> None:
        self._next = 0
        self._missing: set[int] = set()
        self.read = 0
        self.duplicates = 0
        self.disordered = 0

    def see(self, number: int) -> None:
        """The next record has this number."""
        self.read += 1
        if number == self._next:
            self._next += 1
        elif number > self._next:
            self._missing.update(range(self._next, number))
            self._next = number + 1
        elif number in self._missing:
            self._missing.remove(number)
            self.disordered += 1
        else:
            self.duplicates += 1

    def missing(self) -> int:
        """Numbers below the highest one that were not read."""
        return len(self._missing)


MANY = 10_000
WAIT_SECONDS = 0.1
METADATA_SECONDS = 60.0
FULL_QUEUE_MS = 10
"""librdkafka's default is 1 s without a fetch for a partition when its queue is full once: then a run of a second or
two measures how many of these pauses there are."""


class ConsumeDriver:
    """One consumer and what it read."""

    def __init__(self, order: ConsumeOrder, clock: Clock) -> None:
        self._order = order
        self._clock = clock
        self._partitions = [ReadOrder() for _ in range(order.partitions)]
        self._of_producers: defaultdict[tuple[int, int], ReadOrder] = defaultdict(ReadOrder)
        """One order by partition and producer, if the records' numbers are checked."""
        self._bytes = 0
        self._started = 0.0
        self._latencies = array("d")
        self._consumer = Consumer(
            {
                "bootstrap.servers": order.bootstrap,
                "group.id": "headrace-bench",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": FULL_QUEUE_MS,
            }
        )

    def connect(self) -> None:
        """Metadata first; `assign` begins to fetch, so it belongs to the measured time unless the end is followed."""
        self._consumer.list_topics(self._order.topic, timeout=METADATA_SECONDS)
        if self._order.from_end or self._order.promptly:
            self._assign()

    def run(self, instructions: DriverInput) -> ConsumeAnswer:
        """Read until the order's bounds."""
        self._started = self._clock.monotonic()
        end = self._started + self._order.seconds
        if not (self._order.from_end or self._order.promptly):
            self._assign()
        read, now = 0, self._started
        while now < end:
            if instructions.until is not None and read >= instructions.until:
                if not self._order.again:
                    break
                read = 0
                self._assign()
            records = self._take()
            now = self._clock.monotonic()
            self._count(records, now)
            read += len(records)
        self._consumer.close()
        return self._answer(now - self._started)

    def _assign(self) -> None:
        offset = OFFSET_END if self._order.from_end else OFFSET_BEGINNING
        self._consumer.assign(
            [TopicPartition(self._order.topic, index, offset) for index in range(self._order.partitions)]
        )

    def _take(self) -> Sequence[Message]:
        if not self._order.promptly:
            return self._consumer.consume(MANY, WAIT_SECONDS)
        record = self._consumer.poll(WAIT_SECONDS)
        return () if record is None else (record,)

    def _count(self, records: Sequence[Message], now: float) -> None:
        for record in records:
            if record.error():
                raise KafkaException(record.error())
            value, index, offset = record.value(), record.partition(), record.offset()
            assert value is not None and index is not None and offset is not None  # noqa: PT018
            self._bytes += len(value)
            partition = self._partitions[index]
            if self._order.check == NUMBERS or self._order.promptly:
                number, produced_at = KEY.unpack(record.key() or b"")
                if self._order.promptly and produced_at >= self._started:
                    self._latencies.append(now - produced_at)
                if self._order.check == NUMBERS:
                    producer, own_number = producer_of(number)
                    self._of_producers[index, producer].see(own_number)
                    partition.read += 1
                    continue
            if self._order.check == OFFSETS:
                partition.see(offset)
            else:
                partition.read += 1

    def _answer(self, seconds: float) -> ConsumeAnswer:
        partitions, latencies = self._partitions, self._latencies
        checked = [*partitions, *self._of_producers.values()]
        return ConsumeAnswer(
            records=sum(partition.read for partition in partitions),
            bytes=self._bytes,
            seconds=seconds,
            numbers=[partition.read for partition in partitions],
            missing=sum(each.missing() for each in checked),
            duplicates=sum(each.duplicates for each in checked),
            disordered=sum(each.disordered for each in checked),
            p50_ms=percentile(latencies, 50) * 1000 if latencies else None,
            p99_ms=percentile(latencies, 99) * 1000 if latencies else None,
        )


def main() -> None:
    """Prints `ready`, then, after `go`, the answer."""
    order = msgspec.json.decode(sys.argv[1], type=ConsumeOrder)
    driver = ConsumeDriver(order, SystemClock())
    driver.connect()
    instructions = DriverInput(order.until)
    instructions.ready()
    print(msgspec.json.encode(driver.run(instructions)).decode(), flush=True)


if __name__ == "__main__":
    main()
