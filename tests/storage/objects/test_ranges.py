"""Joining ranges: nothing asked is lost, nothing far is read, and as few requests as the gap allows."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.errors import CorruptError, InvalidError
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.merging import MergingStore
from headrace.storage.objects.store import ByteRange, StoreDecorator, merge_ranges, read_each
from tests.manual_clock import ManualClock
from tests.seeds import examples

SIZE = 400
RANGES = st.lists(
    st.tuples(st.integers(0, SIZE - 1), st.integers(1, 60)).map(lambda r: ByteRange(r[0], min(r[1], SIZE - r[0]))),
    max_size=15,
)
GAPS = st.integers(0, 80)


def covered(ranges: list[ByteRange]) -> set[int]:
    return {position for r in ranges for position in range(r.start, r.start + r.length)}


@given(RANGES, GAPS)
def test_spans_cover_what_was_asked_and_no_gap_longer_than_allowed(ranges: list[ByteRange], gap: int) -> None:
    spans = merge_ranges(ranges, gap)
    asked, read = covered(ranges), covered(spans)
    assert asked <= read
    unasked = 0
    for position in sorted(read):
        unasked = 0 if position in asked else unasked + 1
        assert unasked <= gap
    for before, after in itertools.pairwise(spans):
        assert after.start - (before.start + before.length) > gap, "these two should have been one"


class CountingStore(StoreDecorator):
    """Fault model: none; it records the ranges that it is asked for."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(ManualClock()))
        self.asked: list[ByteRange | None] = []

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        self.asked.append(byte_range)
        return await super().get(key, byte_range)


@settings(max_examples=examples(50))
@given(RANGES, GAPS)
def test_each_range_gets_its_own_bytes(ranges: list[ByteRange], gap: int) -> None:
    async def read() -> None:
        inner = CountingStore()
        body = bytes(position % 251 for position in range(SIZE))
        await inner.put("k", body)
        found = await MergingStore(inner, gap).get_many("k", ranges)
        assert found == [body[r.start : r.start + r.length] for r in ranges]
        assert inner.asked == merge_ranges(ranges, gap)

    asyncio.run(read())


def test_the_gap_is_the_most_that_is_read_for_nothing() -> None:
    assert merge_ranges([ByteRange(0, 5), ByteRange(15, 1)], 10) == [ByteRange(0, 16)]
    assert merge_ranges([ByteRange(0, 5), ByteRange(16, 1)], 10) == [ByteRange(0, 5), ByteRange(16, 1)]


async def test_near_ranges_are_one_request_and_far_ones_are_not() -> None:
    inner = CountingStore()
    await inner.put("k", bytes(5_000_000))
    store = MergingStore(inner)
    await store.get_many("k", [ByteRange(1_000_000, 10), ByteRange(0, 10), ByteRange(4_000_000, 5)])
    assert inner.asked == [ByteRange(0, 1_000_010), ByteRange(4_000_000, 5)]


async def test_the_first_failure_ends_the_other_reads() -> None:
    ended: list[int] = []

    async def get(key: str, byte_range: ByteRange) -> bytes:
        if byte_range.start == 3:
            raise CorruptError("short")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(byte_range.start)
        raise AssertionError("never reached")

    with pytest.raises(CorruptError, match="short"):
        await read_each(get, "k", [ByteRange(start, 1) for start in range(5)])
    assert sorted(ended) == [0, 1, 2, 4]


def test_a_bad_range_is_refused_before_anything_is_read() -> None:
    with pytest.raises(InvalidError, match="start=-1 length=2"):
        merge_ranges([ByteRange(0, 1), ByteRange(-1, 2)], 10)
