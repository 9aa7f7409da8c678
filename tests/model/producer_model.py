"""Producer state of one (partition, producer id), folded one batch at a time: obviously right, never fast.

Place: inside the reference model that the real commit is compared with. Invariant: `judge` is the
only place that says what an idempotent producer may do; it reads as the rules do (KIP-98, W7).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.metastore.api.commit import BatchOutcome, StagedBatch

REMEMBERED_BATCHES = 5
SEQUENCES = 2**31
UNKNOWN_LIFE = -1
EXPIRATION_MS = 86_400_000
DELETED_TOPICS_OF_A_NAME = 10
"""So many deleted topics of one name count, the newest."""
BLOCK_MS = 1_200_000
"""How long after its lease an id of a block may become a producer's."""


class RingEntry(NamedTuple):
    """One remembered batch."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    append_time_ms: int


@dataclass
class ProducerState:
    """`ring` is newest first."""

    epoch: int
    next_sequence: int
    ring: list[RingEntry] = field(default_factory=list)
    contiguous_life: int = UNKNOWN_LIFE
    """The metastore's life in which this epoch began with sequence 0, from which on everything was appended."""
    wrapped: bool = False
    """Sequences of this epoch went over their end."""


def last_sequence(batch: StagedBatch) -> int:
    """The sequence of the batch's last record; sequences wrap to 0 after 2**31 - 1."""
    return (batch.base_sequence + batch.record_count - 1) % SEQUENCES


def find_duplicate(state: ProducerState | None, batch: StagedBatch) -> RingEntry | None:
    """The remembered batch that this one repeats: same epoch, same first and last sequence."""
    if state is None or state.epoch != batch.producer_epoch:
        return None
    for entry in state.ring:
        if (entry.base_sequence, entry.last_sequence) == (batch.base_sequence, last_sequence(batch)):
            return entry
    return None


def is_stored(state: ProducerState | None, batch: StagedBatch, life: int) -> bool:
    """Return whether a batch that is not remembered any more is certainly in the log: nothing was left out before
    it. A life of the metastore continues a prefix of the log of earlier ones, and their producers' state with it.
    """
    if state is None or state.epoch != batch.producer_epoch or not 0 <= state.contiguous_life <= life:
        return False
    if state.wrapped:
        behind = (state.next_sequence - batch.base_sequence) % SEQUENCES
        return batch.record_count <= behind <= SEQUENCES // 2
    return batch.base_sequence + batch.record_count <= state.next_sequence


def producer_is_old(lease_age_ms: int) -> bool:
    """Return whether a producer with an id of a block of this age is so old that its state may have expired."""
    return lease_age_ms - BLOCK_MS > EXPIRATION_MS


def partition_is_old(age_ms: int) -> bool:
    """Return whether a partition of this age may have forgotten a producer."""
    return age_ms > EXPIRATION_MS


def goes_on(before: ProducerState | None, batch: StagedBatch) -> bool:
    """Return whether a producer continues where it ended in a deleted topic of the same name, `before`: with the next
    sequence, or with a batch that it sends again because the answer was lost.
    """
    if before is None or before.epoch != batch.producer_epoch:
        return False
    return batch.base_sequence == before.next_sequence or find_duplicate(before, batch) is not None


def judge(state: ProducerState | None, batch: StagedBatch, may_start_anywhere: bool) -> BatchOutcome:
    """Return what a batch that is no duplicate may expect. `may_start_anywhere`: if the partition does not know its
    producer; state may have existed and been forgotten, or the producer continues from a deleted topic.
    """
    if state is None:
        in_order = batch.base_sequence == 0 or may_start_anywhere
    elif batch.producer_epoch < state.epoch:
        return BatchOutcome.PRODUCER_FENCED
    elif batch.producer_epoch > state.epoch:
        in_order = batch.base_sequence == 0
    else:
        in_order = batch.base_sequence == state.next_sequence
    return BatchOutcome.APPENDED if in_order else BatchOutcome.OUT_OF_ORDER


def expected_sequence(state: ProducerState | None, batch: StagedBatch) -> int:
    """Return the sequence that a batch of this epoch has to begin with."""
    return state.next_sequence if state is not None and state.epoch == batch.producer_epoch else 0


def remember(state: ProducerState | None, batch: StagedBatch, base_offset: int, life: int) -> ProducerState:
    """The state after `batch` was appended at `base_offset` in this life of the metastore."""
    entry = RingEntry(batch.base_sequence, last_sequence(batch), base_offset, batch.max_timestamp)
    same_epoch = state is not None and state.epoch == batch.producer_epoch
    older = state.ring if state is not None and same_epoch else []
    next_sequence = (last_sequence(batch) + 1) % SEQUENCES
    begins = life if batch.base_sequence == 0 else UNKNOWN_LIFE
    return ProducerState(
        contiguous_life=state.contiguous_life if state is not None and same_epoch else begins,
        wrapped=(state is not None and same_epoch and state.wrapped) or next_sequence < batch.base_sequence,
        epoch=batch.producer_epoch,
        next_sequence=next_sequence,
        ring=[entry, *older][:REMEMBERED_BATCHES],
    )
