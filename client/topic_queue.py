"""The records of one topic that are not acknowledged yet: placed, batched, and placed again when the count changes.

Place: pure, between producer.py, which adds records, and sending.py, which sends one batch per partition at a time.
Definitions: a batch is in flight from `take` to `stored`, `refused` or `lost`. After `refused` the queue is stale: it
gives no batches until `adopt` has the counts of new metadata, which waits until nothing is in flight.
Invariant: the records of a key are sent in the order in which they were added, also when their partition changes: a
batch with an unknown outcome stays in flight, and is sent again as it was; a refused one was not stored, and all that
is queued is placed again together with it, by its numbers. A record is in one place only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from headrace.metastore.partitions.placement import key_hash, place
from headrace.protocol.partition_counts import TopicCounts
from headrace.storage.records.codec import Record

T = TypeVar("T")
RECORD_OVERHEAD_BYTES = 64


class QueuedRecord(NamedTuple, Generic[T]):
    """`number` rises with each record of the topic. `ticket` is the caller's. `pinned`: the only partition for it."""

    number: int
    record: Record
    hashed: int
    ticket: T
    pinned: int | None

    @property
    def size(self) -> int:
        return len(self.record.key or b"") + len(self.record.value or b"") + RECORD_OVERHEAD_BYTES


class ReadyBatch(NamedTuple, Generic[T]):
    """What is sent, the same at each attempt. `partition_count`: by which its partition was chosen."""

    partition: int
    partition_count: int
    base_sequence: int
    records: Sequence[QueuedRecord[T]]


class TopicQueue(Generic[T]):
    """`batch_bytes`: about how large a batch may get."""

    def __init__(self, counts: TopicCounts, batch_bytes: int, random_hash: Callable[[], int]) -> None:
        self.counts = counts
        self.is_stale = False
        self._batch_bytes, self._random_hash = batch_bytes, random_hash
        self._queued: dict[int, deque[QueuedRecord[T]]] = {}
        self._in_flight: dict[int, ReadyBatch[T]] = {}
        self._sequences: dict[int, int] = {}
        self._number = 0

    def __len__(self) -> int:
        return sum(map(len, self._queued.values())) + sum(len(batch.records) for batch in self._in_flight.values())

    @property
    def in_flight(self) -> int:
        """Batches."""
        return len(self._in_flight)

    def partition_of(self, hashed: int) -> int:
        """Return the partition of a record, by the counts that the queue has."""
        return place(hashed, self.counts.initial, self.counts.undeleted)

    def add(self, record: Record, ticket: T, *, pinned: int | None = None) -> int:
        """Queue the record; its partition as of now."""
        hashed = self._random_hash() if record.key is None else key_hash(record.key)
        self._number += 1
        return self._enqueue(QueuedRecord(self._number, record, hashed, ticket, pinned))

    def take(self) -> Iterator[ReadyBatch[T]]:
        """A batch for each partition that has records and none in flight. They are in flight from now on."""
        if self.is_stale:
            return
        for partition in [each for each in self._queued if each not in self._in_flight]:
            batch = ReadyBatch(
                partition, self.counts.undeleted, self._sequences.get(partition, 0), self._cut(self._queued[partition])
            )
            if not self._queued[partition]:
                del self._queued[partition]
            self._in_flight[partition] = batch
            yield batch

    def stored(self, batch: ReadyBatch[T]) -> None:
        """It is acknowledged."""
        del self._in_flight[batch.partition]
        self._sequences[batch.partition] = (batch.base_sequence + len(batch.records)) % (1 << 31)

    def lost(self, batch: ReadyBatch[T]) -> None:
        """It was refused finally: its sequence numbers are free."""
        del self._in_flight[batch.partition]

    def refused(self, batch: ReadyBatch[T]) -> None:
        """It was certainly not stored, and its partition may be the wrong one."""
        del self._in_flight[batch.partition]
        self._queued.setdefault(batch.partition, deque()).extendleft(reversed(batch.records))
        self.is_stale = True

    def adopt(self, counts: TopicCounts) -> list[QueuedRecord[T]]:
        """Place everything again; what is pinned to a partition that takes no records now is given back."""
        assert not self._in_flight
        kept = min(counts.undeleted, self.counts.undeleted)
        # a partition beyond both counts may return without a memory of this producer
        self._sequences = {index: number for index, number in self._sequences.items() if index < kept}
        waiting = sorted((record for queue in self._queued.values() for record in queue), key=lambda each: each.number)
        self.counts, self._queued, self.is_stale = counts, {}, False
        homeless = []
        for record in waiting:
            if record.pinned is not None and record.pinned >= counts.undeleted:
                homeless.append(record)
            else:
                self._enqueue(record)
        return homeless

    def restart(self) -> None:
        """Sequences begin at 0 under a new producer id; nothing may be in flight."""
        assert not self._in_flight
        self._sequences = {}

    def drain(self) -> list[QueuedRecord[T]]:
        """Everything that was not acknowledged, when the producer ends."""
        left = [record for batch in self._in_flight.values() for record in batch.records]
        left += [record for queue in self._queued.values() for record in queue]
        self._queued, self._in_flight = {}, {}
        return left

    def _enqueue(self, record: QueuedRecord[T]) -> int:
        partition = self.partition_of(record.hashed) if record.pinned is None else record.pinned
        self._queued.setdefault(partition, deque()).append(record)
        return partition

    def _cut(self, queue: deque[QueuedRecord[T]]) -> list[QueuedRecord[T]]:
        """Cut a batch of at least one record."""
        cut = [queue.popleft()]
        size = cut[0].size
        while queue and size + queue[0].size <= self._batch_bytes:
            size += queue[0].size
            cut.append(queue.popleft())
        return cut
