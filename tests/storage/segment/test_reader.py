"""Footers are found in one read or two, walked from, and not believed when they cannot be."""

from __future__ import annotations

import struct
import uuid
from typing import cast

import crc32c
import pytest

from headrace.storage.errors import CorruptError, NotFoundError
from headrace.storage.objects.store import ByteRange, ObjectStore
from headrace.storage.segment.reader import (
    TAIL_BYTES,
    load_footer,
    read_footer,
    start_at_record,
    start_at_timestamp,
    verify_segment,
    walk_batches,
)
from tests.storage.batches import BASE_TIME_MS, forge, plain_batch
from tests.storage.segments import Placed, lay_out

TOPIC = uuid.UUID(int=10)
TRAILER_BYTES = 20


class RangeStore:
    """One object; remembers which ranges were asked for."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        if key != "there":
            raise NotFoundError(f"no object: key={key}")
        assert byte_range is not None
        self.asked.append((byte_range.start, byte_range.length))
        return self.data[byte_range.start : byte_range.start + byte_range.length]

    def as_store(self) -> ObjectStore:
        return cast(ObjectStore, self)


def reseal(data: bytes, footer: bytes, **trailer: int) -> bytes:
    """`data` with another footer under a valid checksum; trailer fields may be false."""
    length = len(data) - TRAILER_BYTES
    body_end = length - struct.unpack_from(">I", data, length)[0]
    head = struct.pack(">IHH", trailer.get("length", len(footer)), 0, trailer.get("version", 1))
    crc = crc32c.crc32c(footer + head)
    return data[:body_end] + footer + head + struct.pack(">I", crc) + data[-8:]


def footer_of(data: bytes) -> bytearray:
    length = struct.unpack_from(">I", data, len(data) - TRAILER_BYTES)[0]
    return bytearray(data[-TRAILER_BYTES - length : -TRAILER_BYTES])


@pytest.fixture(scope="module")
def small() -> bytes:
    data, _ = lay_out([Placed(TOPIC, partition, plain_batch(5, b"v" * 40)) for partition in (0, 0, 0, 0, 1)])
    return data


@pytest.fixture(scope="module")
def wide() -> bytes:
    """1,000 partitions: a footer larger than the first read."""
    data, _ = lay_out([Placed(TOPIC, partition, plain_batch()) for partition in range(1_000)])
    return data


async def test_a_small_footer_takes_one_read(small: bytes) -> None:
    store = RangeStore(small)
    assert await load_footer(store.as_store(), "there", len(small)) == verify_segment(small)
    assert store.asked == [(0, len(small))]


async def test_a_large_footer_takes_a_second_read_of_the_rest_only(wide: bytes) -> None:
    store = RangeStore(wide)
    footer = await load_footer(store.as_store(), "there", len(wide))
    assert footer == verify_segment(wide)
    assert len(footer.partitions) == 1_000
    (first, rest) = store.asked
    assert first == (len(wide) - TAIL_BYTES, TAIL_BYTES)
    assert rest[0] + rest[1] == first[0]
    assert rest[1] == 12 + 1_000 * 80 + TRAILER_BYTES - TAIL_BYTES


async def test_the_store_s_own_errors_pass(small: bytes) -> None:
    with pytest.raises(NotFoundError):
        await load_footer(RangeStore(small).as_store(), "elsewhere", len(small))


@pytest.mark.parametrize("size", [0, -1])
async def test_an_empty_object_is_not_read(size: int) -> None:
    store = RangeStore(b"")
    with pytest.raises(CorruptError):
        await load_footer(store.as_store(), "there", size)
    assert store.asked == []


@pytest.mark.parametrize("length", [2**32 - 1, 2**26 + 1, 10**8 - 1, 11, 0])
async def test_a_lying_footer_length_costs_no_second_read(small: bytes, length: int) -> None:
    """The object is said to be 200 MB, so only the claim itself can be refused."""
    lying = reseal(small, bytes(footer_of(small)), length=length)[-TAIL_BYTES:]
    size = 200_000_000

    class Sparse(RangeStore):
        async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
            assert byte_range is not None
            self.asked.append((byte_range.start, byte_range.length))
            return lying.rjust(byte_range.length, b"\0")

    store = Sparse(b"")
    with pytest.raises(CorruptError, match="length cannot be"):
        await load_footer(store.as_store(), "there", size)
    assert len(store.asked) == 1


async def test_a_footer_longer_than_its_object_is_not_asked_for(small: bytes) -> None:
    store = RangeStore(reseal(small, bytes(footer_of(small)), length=len(small)))
    with pytest.raises(CorruptError, match="length cannot be"):
        await load_footer(store.as_store(), "there", len(small))
    assert len(store.asked) == 1


def test_a_file_without_partitions_is_corrupt(small: bytes) -> None:
    nothing = struct.pack(">III", 0, 0, 256)
    without_body = small[:16] + small[-TRAILER_BYTES - len(footer_of(small)) :]
    with pytest.raises(CorruptError, match="counts do not fit"):
        verify_segment(reseal(without_body, nothing))


def test_a_tail_without_the_footer_s_start_is_refused(small: bytes) -> None:
    with pytest.raises(CorruptError, match="does not hold the footer"):
        read_footer(small[-60:], len(small))


def test_the_wrong_object_size_is_noticed(small: bytes) -> None:
    with pytest.raises(CorruptError, match="does not cover"):
        read_footer(small, len(small) + 1)


def test_an_unknown_version_is_named(small: bytes) -> None:
    with pytest.raises(CorruptError, match="version=2 known=1"):
        read_footer(reseal(small, bytes(footer_of(small)), version=2), len(small))


COUNTS, ROW = 12, 80


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, struct.pack(">I", 2**32 - 1), "counts do not fit"),
        (0, struct.pack(">I", 0), "counts do not fit"),
        (4, struct.pack(">I", 2**32 - 1), "counts do not fit"),
        (COUNTS, b"\xff" * 16, "out of order"),
        (COUNTS + 16, struct.pack(">i", -1), "out of order"),
        (COUNTS + ROW + 16, struct.pack(">i", 0), "out of order"),
        (COUNTS + 28, struct.pack(">q", 17), "out of order"),
        (COUNTS + 28, struct.pack(">q", 2**62), "out of order"),
        (COUNTS + 36, struct.pack(">q", -100), "counts cannot be"),
        (COUNTS + 36, struct.pack(">q", 2**62), "out of order"),
        (COUNTS + ROW + 36, struct.pack(">q", 2**62), "does not cover"),
        (COUNTS + 44, struct.pack(">I", 0), "counts cannot be"),
        (COUNTS + 44, struct.pack(">I", 2**31), "counts cannot be"),
        (COUNTS + 48, struct.pack(">q", 1), "leaves its partition"),
        (COUNTS + 76, struct.pack(">I", 0), "do not add up"),
        (COUNTS + 76, struct.pack(">I", 2**32 - 1), "do not add up"),
        (COUNTS + 2 * ROW, struct.pack(">q", -1), "does not rise"),
        (COUNTS + 2 * ROW + 16, struct.pack(">q", 16), "does not rise"),
        (COUNTS + 2 * ROW + 2 * 24 + 16, struct.pack(">q", 2**40), "leaves its partition"),
    ],
)
def test_a_footer_that_contradicts_itself_is_corrupt(small: bytes, offset: int, value: bytes, message: str) -> None:
    """Under a valid checksum, so a buggy writer cannot lead a reader astray either."""
    footer = footer_of(small)
    footer[offset : offset + len(value)] = value
    with pytest.raises(CorruptError, match=message):
        read_footer(reseal(small, bytes(footer)), len(small))


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (8, struct.pack(">I", 4_096)),
        (COUNTS + 48, struct.pack(">q", 21)),
        (COUNTS + 56, struct.pack(">q", 1)),
        (COUNTS + 64, struct.pack(">q", 1)),
        (COUNTS + 72, struct.pack(">I", 1)),
        (COUNTS + 2 * ROW + 8, struct.pack(">q", 1)),
    ],
)
def test_verification_finds_a_footer_that_contradicts_its_batches(small: bytes, offset: int, value: bytes) -> None:
    footer = footer_of(small)
    footer[offset : offset + len(value)] = value
    data = reseal(small, bytes(footer))
    assert read_footer(data, len(data)).object_size == len(data)
    with pytest.raises(CorruptError, match="contradicts its batches"):
        verify_segment(data)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_length": -12},
        {"batch_length": 48},
        {"batch_length": 2**31 - 1},
        {"magic": 1},
        {"last_offset_delta": -1},
    ],
    ids=str,
)
def test_walking_stops_at_what_is_no_batch(wrong: dict[str, int]) -> None:
    sound = plain_batch(2)
    walked = walk_batches(memoryview(sound + forge(plain_batch(), **wrong)))
    assert next(walked)[0] == 0
    with pytest.raises(CorruptError):
        next(walked)


@pytest.mark.parametrize("kept", [1, 60, 61, 68])
def test_walking_stops_at_a_cut_off_batch(kept: int) -> None:
    sound = plain_batch()
    with pytest.raises(CorruptError, match="truncated batch"):
        list(walk_batches(sound + sound[:kept]))


def test_walking_starts_at_the_given_position() -> None:
    first, second = plain_batch(2), plain_batch(3)
    assert [(p, h.record_count) for p, h in walk_batches(first + second, len(first))] == [(len(first), 3)]
    assert list(walk_batches(first, len(first))) == []


def test_the_index_leads_close_to_a_record_or_a_time() -> None:
    batches = [plain_batch(10, b"v" * 20, base_timestamp=BASE_TIME_MS + 100 * number) for number in range(40)]
    data, positions = lay_out([Placed(TOPIC, 0, batch) for batch in batches], index_interval_bytes=1_000)
    (entry,) = read_footer(data, len(data)).partitions
    assert len(entry.index_entries) > 5
    for number, position in enumerate(positions):
        for records, start in (
            start_at_record(entry, number * 10 + 3),
            start_at_timestamp(entry, BASE_TIME_MS + 100 * number + 9),
        ):
            assert start <= position < start + 1_000 + len(batches[0])
            assert records == positions.index(start) * 10
    for mark in entry.index_entries:
        assert start_at_record(entry, mark.record_position) == (mark.record_position, mark.position)
        assert start_at_record(entry, mark.record_position - 1)[1] < mark.position
    assert start_at_record(entry, 0) == start_at_timestamp(entry, 0) == (0, entry.position)
