"""The map of last offsets: against a dict, and its memory."""

from __future__ import annotations

import random
import tracemalloc

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.compactor.cleaning import key_map
from headrace.compactor.cleaning.key_map import ABSENT, BYTES_PER_KEY, KeyMap


@given(st.lists(st.lists(st.binary(max_size=3), max_size=8), max_size=12), st.binary(max_size=16))
def test_it_says_what_a_dict_says(extents: list[list[bytes]], secret: bytes) -> None:
    keys, known, offset = KeyMap(1 << 20, secret), dict[bytes, int](), 0
    for records in extents:
        keys.add(keys.digests(records), numpy.arange(offset, offset + len(records)))
        known.update({key: offset + number for number, key in enumerate(records)})
        offset += len(records)
        asked = [*records, b"never", b"\0" * 16]
        assert keys.newest(keys.digests(asked)).tolist() == [known.get(key, ABSENT) for key in asked]
        assert len(keys) == len(known)


def test_clients_cannot_know_a_digest() -> None:
    one, other = KeyMap(1 << 20, b"1"), KeyMap(1 << 20, b"2")
    assert one.digests([b"key"]) != other.digests([b"key"])


def test_it_is_full_at_its_capacity() -> None:
    keys = KeyMap(3 * BYTES_PER_KEY, b"")
    for number, full in ((0, False), (0, False), (1, False), (2, True)):
        keys.add(keys.digests([bytes([number])]), numpy.array([number]))
        assert keys.is_full is full
        assert not keys.is_exceeded
    keys.add(keys.digests([b"x"]), numpy.array([9]))
    assert keys.is_exceeded


def test_a_key_takes_no_more_memory_than_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the peak, while what waits is sorted in; the digests of records come from random keys."""
    monkeypatch.setattr(key_map, "_WAITING_MIN", 1_000)
    count, rng = 120_000, random.Random(1)
    keys = KeyMap(count * BYTES_PER_KEY, b"")
    batches = [
        numpy.frombuffer(rng.randbytes(16 * 500), "S16") for _ in range(count // 500)
    ]  # made before: only the map is measured
    tracemalloc.start()
    try:
        for number, digests in enumerate(batches):
            keys.add(digests.copy(), numpy.arange(number * 500, number * 500 + 500))
        assert len(keys) == count
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 24 < peak / count <= BYTES_PER_KEY
