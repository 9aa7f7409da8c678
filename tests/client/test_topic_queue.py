"""The producer's queue against a commit that refuses other counts: order per key, each record once; planted bugs."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict

import pytest

from headrace.client.topic_queue import QueuedRecord, ReadyBatch, TopicQueue
from headrace.metastore.partitions.placement import key_hash, place
from headrace.protocol.partition_counts import TopicCounts
from headrace.storage.records.codec import Record
from tests.planted import PlantedBugs, Trial

INITIAL, KEYS, STEPS = 3, 12, 400
SEEDS = range(40)


def counts(undeleted: int) -> TopicCounts:
    return TopicCounts(uuid.UUID(int=1), INITIAL, undeleted)


class Commit:
    """Partitions of one topic, and what a producer's queue does with them. `check` at the end.

    Faults: the count changes at any time, and a partition that returns knows no producer; answers are lost, then the
    batch comes again with the same bytes. A partition is emptied and removed later than its retries end.
    """

    def __init__(self, seed: int, queue_type: type[TopicQueue[int]] = TopicQueue) -> None:
        self.rng = random.Random(seed)
        self.count = INITIAL
        self.queue = queue_type(counts(INITIAL), 200, lambda: self.rng.getrandbits(31))
        self.log: list[tuple[int, bytes, int]] = []
        """Partition, key, number; in the order of the appends."""
        self.producer = 0
        self.wants_producer = False
        self.last_sequence: dict[int, tuple[int, int]] = {}
        """By partition: producer, sequence."""
        self.under_way: list[tuple[int, ReadyBatch[int]]] = []
        """With their producers."""
        self.sent: defaultdict[bytes, int] = defaultdict(int)

    def run(self) -> Commit:
        for _ in range(STEPS):
            self.rng.choice([self.add, self.add, self.add, self.take, self.answer, self.answer, self.change])()
        while self.under_way or len(self.queue):
            self.take()
            self.answer()
        return self

    def add(self) -> None:
        key = b"key-%d" % self.rng.randrange(KEYS)
        self.sent[key] += 1
        self.queue.add(Record(0, 0, key, b"%d" % self.sent[key]), self.sent[key])

    def take(self) -> None:
        if self.queue.is_stale and not self.queue.in_flight:
            self.queue.adopt(counts(self.count))
            if self.wants_producer:
                self.queue.restart()
                self.producer, self.wants_producer = self.producer + 1, False
        self.under_way += ((self.producer, batch) for batch in self.queue.take())

    def change(self) -> None:
        if self.rng.random() < 0.1:
            before, self.count = self.count, self.rng.randrange(INITIAL, 14)
            for index in set(range(before, self.count)) - {batch.partition for _, batch in self.under_way}:
                self.last_sequence.pop(index, None)

    def answer(self) -> None:
        """Any of the batches that are under way reaches the commit; its answer may be lost."""
        if not self.under_way:
            return
        producer, batch = self.under_way.pop(self.rng.randrange(len(self.under_way)))
        outcome = self.commit(producer, batch)
        if self.rng.random() < 0.2:
            self.under_way.append((producer, batch))
        elif outcome == "stored":
            self.queue.stored(batch)
        else:
            self.queue.refused(batch)
            self.wants_producer |= outcome == "out of order"

    def commit(self, producer: int, batch: ReadyBatch[int]) -> str:
        """A duplicate is recognised before the counts are compared."""
        end = batch.base_sequence + len(batch.records) - 1
        known, last = self.last_sequence.get(batch.partition, (-1, -1))
        last = last if known == producer else -1
        if end <= last:
            return "stored"
        if batch.partition_count != self.count:
            return "another count"
        if batch.base_sequence != last + 1:
            return "out of order"
        self.last_sequence[batch.partition] = producer, end
        for each in batch.records:
            assert each.record.key is not None
            assert place(key_hash(each.record.key), INITIAL, self.count) == batch.partition
            self.log.append((batch.partition, each.record.key, each.ticket))
        return "stored"

    def check(self) -> None:
        found: defaultdict[bytes, list[int]] = defaultdict(list)
        for _, key, number in self.log:
            found[key].append(number)
        assert found == {key: list(range(1, last + 1)) for key, last in self.sent.items()}


@pytest.mark.requirement("P10", "P4")
def test_records_of_a_key_are_stored_in_order_and_once() -> None:
    changes = 0
    for seed in SEEDS:
        commit = Commit(seed).run()
        commit.check()
        changes += commit.queue.counts.undeleted != INITIAL
    assert changes > len(SEEDS) / 2


class DoesNotWait(TopicQueue[int]):
    """New counts are adopted while batches of the earlier count are under way."""

    @property
    def in_flight(self) -> int:
        return 0

    def adopt(self, counts: TopicCounts) -> list[QueuedRecord[int]]:
        under_way, self._in_flight = self._in_flight, {}
        homeless = super().adopt(counts)
        self._in_flight = under_way
        return homeless


class ForgetsTheOrder(TopicQueue[int]):
    """What is placed again is not sorted by its numbers."""

    def adopt(self, counts: TopicCounts) -> list[QueuedRecord[int]]:
        for queue in self._queued.values():
            for _ in range(len(queue)):
                record = queue.popleft()
                queue.append(record._replace(number=-record.number))
        return super().adopt(counts)


class NumbersAgain(TopicQueue[int]):
    """All sequences begin again with new counts: what is new looks like a duplicate."""

    def adopt(self, counts: TopicCounts) -> list[QueuedRecord[int]]:
        self._sequences = {}
        return super().adopt(counts)


class RefusedGoesLast(TopicQueue[int]):
    """A refused batch is queued after what came later."""

    def adopt(self, counts: TopicCounts) -> list[QueuedRecord[int]]:
        newest = self._number
        for queue in self._queued.values():
            first = queue.popleft()
            newest += 1
            queue.append(first._replace(number=newest))
        self._number = newest
        return super().adopt(counts)


PLANTED = PlantedBugs("the producer's queue")


@PLANTED.cases([DoesNotWait, ForgetsTheOrder, NumbersAgain, RefusedGoesLast], lambda bug: bug.__name__)
def test_planted_bugs_are_found(bug: type[TopicQueue[int]], trial: Trial) -> None:
    for seed in trial.seeds():
        with trial.shown_by(AssertionError):
            Commit(seed, bug).run().check()


def test_a_null_that_is_pinned_goes_when_its_partition_takes_no_records() -> None:
    queue: TopicQueue[str] = TopicQueue(counts(8), 1_000, lambda: 0)
    queue.add(Record(0, 0, b"k", None), "kept", pinned=1)
    queue.add(Record(0, 0, b"k", None), "given back", pinned=7)
    (first, second) = queue.take()
    queue.refused(first)
    queue.refused(second)
    assert [each.ticket for each in queue.adopt(counts(5))] == ["given back"]
    assert [(batch.partition, batch.records[0].ticket) for batch in queue.take()] == [(1, "kept")]


def test_nothing_is_sent_between_a_refusal_and_new_counts() -> None:
    queue: TopicQueue[int] = TopicQueue(counts(3), 1, lambda: 0)
    for number in range(6):
        queue.add(Record(0, 0, b"%d" % number, b"v"), number)
    batches = list(queue.take())
    assert len(batches) > 1
    queue.refused(batches[0])
    queue.stored(batches[1])
    assert list(queue.take()) == []
    assert queue.in_flight == len(batches) - 2
