"""Producers that know only the count of a topic's partitions, in memory, and the time in which they live.

Place: what tests/key_order/doubling_order.py and tests/key_order/halving_order.py share.
Invariant: a seed decides all. Time is a number of milliseconds that moves from event to event.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

COUNT = 4
"""The lower count of both: a topic doubles from it, and halves to it."""
KEYS = 40


class SentRecord(NamedTuple):
    """`number` counts all records of a producer."""

    producer: int
    key: int
    number: int


class QueuedBatch(NamedTuple):
    """What a producer sends to one partition, and sends again unchanged."""

    partition: int
    records: tuple[SentRecord, ...]


class UnmodifiedProducer:
    """Places a record once, by hash modulo the count that it knows; one batch of a partition is under way at a time."""

    def __init__(self, number: int, count: int = COUNT) -> None:
        self.number = number
        self.count = count
        self.sent = 0
        self.queues: defaultdict[int, list[SentRecord]] = defaultdict(list)
        self.under_way: set[int] = set()

    def produce(self, key: int) -> tuple[int, SentRecord]:
        """The next record, queued for its partition."""
        record = SentRecord(self.number, key, self.sent)
        self.sent += 1
        partition = key % self.count
        self.queues[partition].append(record)
        return partition, record

    def next_batch(self, partition: int) -> QueuedBatch | None:
        """All that is queued for the partition, on its way from now on; None: nothing, or a batch is on its way."""
        if partition in self.under_way or not self.queues[partition]:
            return None
        self.under_way.add(partition)
        return QueuedBatch(partition, tuple(self.queues.pop(partition)))


class Events:
    """What happens when."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, delay_ms: int, event: Callable[[], None]) -> None:
        """Let it happen so much later."""
        heapq.heappush(self._events, (self.now + delay_ms, next(self._order), event))

    def run_all(self) -> None:
        """Run everything until nothing is left to happen."""
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()


def next_backoff(backoff_ms: int) -> int:
    """retry.backoff.ms doubles up to retry.backoff.max.ms."""
    return min(1_000, 2 * backoff_ms)


def drawn_backoff(rng: random.Random, backoff_ms: int) -> int:
    """Draw a pause with the jitter of clients."""
    return int(backoff_ms * rng.uniform(0.8, 1.2))


def behind_newer(records: tuple[SentRecord, ...] | list[SentRecord]) -> list[SentRecord]:
    """The records that come after a newer one of their producer and key."""
    newest: dict[tuple[int, int], int] = {}
    found = []
    for record in records:
        name = record.producer, record.key
        if record.number < newest.get(name, -1):
            found.append(record)
        newest[name] = max(record.number, newest.get(name, -1))
    return found
