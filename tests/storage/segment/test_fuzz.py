"""Damaged, foreign and spliced files: always CorruptError, never a wrong read.

Every byte of a file is covered by some checksum or compared, so `verify_segment` must refuse any
file that differs from what was written; `read_footer` must give the footer that was written, or none.
"""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.errors import CorruptError
from headrace.storage.segment.reader import read_footer, verify_segment, walk_batches
from tests.seeds import examples
from tests.storage.batches import plain_batch
from tests.storage.segments import Placed, lay_out

TOPIC = uuid.UUID(int=77)


def _file(value: bytes) -> bytes:
    placed = [Placed(TOPIC, partition, plain_batch(3, value)) for partition in (0, 0, 0, 0, 0, 1, 2, 2)]
    return lay_out(placed)[0]


FILE, OTHER = _file(b"a" * 30), _file(b"b" * 30)
FOOTER = read_footer(FILE, len(FILE))
places = st.integers(0, len(FILE))


def judge(damaged: bytes) -> None:
    """Neither a wrong read nor an exception of another kind."""
    if damaged in (FILE, OTHER):
        return
    with pytest.raises(CorruptError):
        verify_segment(damaged)
    try:
        footer = read_footer(damaged, len(damaged))
    except CorruptError:
        return
    assert footer in (FOOTER, read_footer(OTHER, len(OTHER)))


def test_every_single_flipped_bit_is_found() -> None:
    damaged = bytearray(FILE)
    for bit in range(len(FILE) * 8):
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError):
            verify_segment(bytes(damaged))
        damaged[bit // 8] ^= 1 << bit % 8
    assert verify_segment(bytes(damaged)) == FOOTER


def test_every_truncation_is_found() -> None:
    for size in range(len(FILE)):
        judge(FILE[:size])


@settings(max_examples=examples(200), deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, len(FILE) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_overwritten_bytes(changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(FILE)
    for place, value in changes:
        damaged[place] = value
    judge(bytes(damaged))


@settings(max_examples=examples(200), deadline=None)
@given(start=places, end=places, to=places)
def test_bytes_moved_dropped_or_doubled(start: int, end: int, to: int) -> None:
    judge(FILE[:to] + FILE[min(start, end) : max(start, end)] + FILE[to:])
    judge(FILE[: min(start, end)] + FILE[max(start, end) :])


@settings(max_examples=examples(200), deadline=None)
@given(cut=places, other_cut=places)
def test_two_files_spliced(cut: int, other_cut: int) -> None:
    judge(FILE[:cut] + OTHER[other_cut:])
    judge(FILE[:cut] + OTHER[cut:])


def test_two_files_spliced_between_batches() -> None:
    for entry in FOOTER.partitions:
        for position, _ in walk_batches(FILE[entry.position : entry.position + entry.length]):
            judge(FILE[: entry.position + position] + OTHER[entry.position + position :])


@settings(max_examples=examples(200), deadline=None)
@given(foreign=st.binary(max_size=400), tail=places)
def test_foreign_bytes(foreign: bytes, tail: int) -> None:
    judge(foreign)
    judge(foreign + FILE[tail:])


@settings(max_examples=examples(200), deadline=None)
@given(junk=st.binary(max_size=200), kept=st.integers(0, len(FILE)))
def test_walking_junk(junk: bytes, kept: int) -> None:
    buffer = FILE[16:kept] + junk
    end = 0
    try:
        for position, header in walk_batches(buffer):
            assert position == end
            end = position + header.size
    except CorruptError:
        return
    assert end == len(buffer)
