"""States of copied producers are those of the source after the same batches."""

from __future__ import annotations

import struct

import pytest

from headrace.compactor.links.producers import ProducerStates
from headrace.storage.records.header import BatchHeader, read_header
from tests.compactor.links.source_log import LogBatch, SourceLog

pytestmark = pytest.mark.requirement("X14")

LAST = 2**31 - 1


def _batch(producer_id: int, epoch: int, sequence: int, count: int = 1, base: int = 0) -> BatchHeader:
    batch = LogBatch(base, base + count - 1, 0, (), (producer_id, epoch, sequence))
    return read_header(batch.encoded())


def _ring(states: ProducerStates) -> list[tuple[int, int, int, int]]:
    (state,) = states.changed(9)
    assert state.partition_key == 9
    return list(struct.iter_unpack(">iiqq", state.ring))


def test_the_last_five_batches_are_kept_the_newest_first() -> None:
    states = ProducerStates()
    for number in range(7):
        states.note(_batch(1, 0, 2 * number, 2, base=10 * number))
    assert [entry[:3] for entry in _ring(states)] == [(2 * n, 2 * n + 1, 10 * n) for n in (6, 5, 4, 3, 2)]
    (state,) = states.changed(9)
    assert (state.epoch, state.next_sequence) == (0, 14)


def test_sequences_begin_again_after_the_largest() -> None:
    states = ProducerStates()
    states.note(_batch(1, 0, LAST - 1, 4))
    (state,) = states.changed(9)
    assert state.next_sequence == 2
    assert _ring(states)[0][:2] == (LAST - 1, 1)
    states.note(_batch(1, 0, LAST, 1))
    (state,) = states.changed(9)
    assert state.next_sequence == 0


def test_a_newer_epoch_replaces_an_older_one() -> None:
    states = ProducerStates()
    states.note(_batch(1, 2, 5))
    states.note(_batch(1, 3, 0))
    states.note(_batch(1, 2, 6))
    (state,) = states.changed(9)
    assert (state.epoch, state.next_sequence, len(state.ring)) == (3, 1, 24)


def test_markers_and_batches_without_a_producer_say_nothing() -> None:
    log = SourceLog()
    log.append(1)
    log.append(1, 4, transactional=True)
    log.finish(4, commit=True)
    states = ProducerStates()
    for batch in log.batches:
        states.note(read_header(batch.encoded()))
    (state,) = states.changed(9)
    assert (state.producer_id, state.next_sequence) == (4, 1)


def test_changes_of_a_copy_are_not_changes_of_the_original() -> None:
    states = ProducerStates()
    states.note(_batch(1, 0, 0))
    later = states.copy()
    later.note(_batch(2, 0, 0))
    assert [state.producer_id for state in later.changed(9)] == [2]
    assert [state.producer_id for state in states.changed(9)] == [1]
    assert later.has(1, 0, 0)
    assert not states.has(2, 0, 0)
