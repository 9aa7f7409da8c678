"""librdkafka consumers that read the partitions of one topic, each partition by one of them, from its begin.

Place: a benchmark's readers; `read` is called again and again, and takes what has come.
Invariant: a value counts as read for a partition when its consumer got it from there.
"""

from __future__ import annotations

import time
from collections import Counter

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition


class AssignedReaders:
    """`first_at`: when each value was seen first, by the monotonic clock; `errors`: names of what consumers report."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, consumers: int) -> None:
        self.partitions = partitions
        self.first_at: dict[bytes, float] = {}
        self.errors: Counter[str] = Counter()
        self._read: dict[bytes, set[int]] = {}
        self._consumers = []
        for number in range(consumers):
            consumer = Consumer({
                "bootstrap.servers": bootstrap,
                "group.id": f"reader-{number}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "queued.min.messages": 1_000,
            })  # fmt: skip
            consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(number, partitions, consumers)])
            self._consumers.append(consumer)

    def read(self) -> None:
        """Take what every consumer has."""
        for consumer in self._consumers:
            for message in consumer.consume(1_000, 0):
                if (error := message.error()) is not None:
                    self.errors[error.name()] += 1
                    continue
                value, partition = message.value(), message.partition()
                assert value is not None
                assert partition is not None
                self.first_at.setdefault(value, time.monotonic())
                self._read.setdefault(value, set()).add(partition)

    def have_all(self, value: bytes) -> bool:
        """Return whether every partition's reader has it."""
        return len(self._read.get(value, ())) == self.partitions

    def describe(self) -> str:
        """Return how far they are."""
        return f"partitions={self.partitions} read={ {v: len(found) for v, found in self._read.items()} } {self.errors}"

    def close(self) -> None:
        """Each of them."""
        for consumer in self._consumers:
            consumer.close()
