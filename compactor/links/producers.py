"""What a partition of a source knows of its producers, collected from the batches that are copied.

Place: made with each chunk (chunks.py), stored with it by append_linked; promotion adds what DescribeProducers says.
Invariant: a producer's state is that of the source after the same batch: its epoch, the sequence that follows, its
last five batches. A batch of a newer epoch replaces those of older ones; control batches say nothing. Batches of
aborted transactions count, too: the source answers their repeats. No claim that sequences are contiguous: a cleaned
source has gaps.
Source: Kafka's ProducerStateManager; docs/decisions/0037.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from headrace.metastore.api.links import CopiedProducer
from headrace.storage.records.header import BatchHeader

RING_BATCHES = 5
PRODUCERS_MAX = 100_000
"""Producers of one partition that a worker remembers; the metastore has the states of all."""
_ENTRY = struct.Struct(">iiqq")
_SEQUENCES = 1 << 31


class ProducerBatch(NamedTuple):
    """One batch: its sequences, its base offset and its time in ms."""

    first: int
    last: int
    base_offset: int
    timestamp: int


class ProducerState(NamedTuple):
    """`batches`: up to five, the newest first."""

    epoch: int
    batches: tuple[ProducerBatch, ...]
    last_sequence: int
    """-1: it has sent nothing in this epoch."""

    @property
    def next_sequence(self) -> int:
        """The sequence of the next batch."""
        return (self.last_sequence + 1) % _SEQUENCES


class ProducerStates:
    """The producers of one partition, as far as batches showed them."""

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self._changed: set[int] = set()

    def copy(self) -> ProducerStates:
        """The same states; changes of the copy are its own, and none is counted as one yet."""
        other = ProducerStates()
        other._states = dict(self._states)
        return other

    def note(self, header: BatchHeader) -> None:
        """Count a batch of the log."""
        if header.is_control or min(header.producer_id, header.producer_epoch, header.base_sequence) < 0:
            return
        known = self._states.get(header.producer_id)
        if known is not None and header.producer_epoch < known.epoch:
            return
        earlier = known.batches if known is not None and known.epoch == header.producer_epoch else ()
        last = (header.base_sequence + header.last_offset_delta) % _SEQUENCES
        batch = ProducerBatch(header.base_sequence, last, header.base_offset, header.highest_timestamp)
        self._states.pop(header.producer_id, None)
        self._states[header.producer_id] = ProducerState(header.producer_epoch, (batch, *earlier)[:RING_BATCHES], last)
        self._changed.add(header.producer_id)
        if len(self._states) > PRODUCERS_MAX:
            oldest = next(iter(self._states))
            if oldest not in self._changed:
                del self._states[oldest]

    def has(self, producer_id: int, epoch: int, last_sequence: int) -> bool:
        """Return whether batches showed this state, or a later one."""
        known = self._states.get(producer_id)
        if known is None or known.epoch < epoch:
            return False
        return known.epoch > epoch or known.last_sequence == last_sequence

    def changed(self, partition_key: int) -> Iterator[CopiedProducer]:
        """The states that batches changed since the copy was made."""
        for producer_id in sorted(self._changed):
            yield copied(partition_key, producer_id, self._states[producer_id])


def copied(partition_key: int, producer_id: int, state: ProducerState) -> CopiedProducer:
    """The state as the metastore stores it."""
    ring = b"".join(_ENTRY.pack(*batch) for batch in state.batches)
    return CopiedProducer(partition_key, producer_id, state.epoch, state.next_sequence, ring)
