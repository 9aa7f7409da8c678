"""A batch with other records than its header claims is refused: it would stop every reader."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.errors import CorruptError, HeadraceError
from headrace.storage.records.check import check_batch
from headrace.storage.records.check_records import _AT_ONCE, _MANY, RecordWork, check_records, largest
from headrace.storage.records.codec import Record, decode_records, encode_batch
from headrace.storage.records.compression import Codec, compress
from headrace.storage.records.errors import BatchTooLargeError, InvalidRecordError
from headrace.storage.records.header import HEADER_BYTES, read_header
from tests.seeds import examples
from tests.storage.batches import crowded_batch, forge, plain_batch

pytestmark = pytest.mark.requirement("X7")
CODECS = list(Codec)
SIZES = [1, 2, 60, _MANY - 1, _MANY, _MANY + 1, 300]


def _check(batch: bytes | memoryview) -> int:
    view = memoryview(batch)
    return check_records(view, check_batch(view, max_bytes=len(view))).unpacked_bytes


def _packed(body: bytes, count: int, codec: Codec = Codec.NONE) -> bytes:
    packed = compress(codec, body)
    batch = plain_batch()[:HEADER_BYTES] + packed
    return forge(
        batch, batch_length=49 + len(packed), last_offset_delta=count - 1, record_count=count, attributes=int(codec)
    )


def _bodies(count: int, value: bytes = b"v") -> bytes:
    return plain_batch(count, value)[HEADER_BYTES:]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", SIZES)
def test_honest_batches_pass(codec: Codec, count: int) -> None:
    rng = random.Random(count)
    records = [
        Record(
            index,
            1_700_000_000_000 + rng.randint(-(10**9), 10**9),
            rng.choice([None, b"", b"key", bytes(300)]),
            rng.choice([None, b"", b"value" * rng.randint(1, 60)]),
            [("h" * rng.randint(0, 3), rng.choice([None, b"", b"x" * 200])) for _ in range(rng.choice([0, 0, 2]))],
        )
        for index in range(count)
    ]
    assert _check(encode_batch(records, codec=codec, base_offset=0)) > 0


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("claimed", [-1, 1])
def test_a_false_count_is_refused(codec: Codec, count: int, claimed: int) -> None:
    claims = count + claimed
    if claims < 1:
        return
    with pytest.raises(InvalidRecordError):
        _check(_packed(_bodies(count, b"value"), claims, codec))


def test_a_few_kilobytes_that_claim_ten_million_records_are_refused() -> None:
    body = random.Random(1).randbytes(7_000)
    batch = _packed(body, 10_000_000, Codec.ZSTD)
    assert len(batch) < 8_000
    with pytest.raises(InvalidRecordError, match="fewer records than claimed"):
        _check(batch)


@pytest.mark.parametrize("count", SIZES[1:])
def test_offsets_rise_by_one(count: int) -> None:
    body = _bodies(count)
    with pytest.raises(InvalidRecordError, match="offsets"):
        _check(_packed(_bodies(1) * count, count))
    with pytest.raises(InvalidRecordError, match="surplus"):
        _check(_packed(body + b"\0", count))
    with pytest.raises(InvalidRecordError):
        _check(crowded_batch(count))


@pytest.mark.parametrize("count", SIZES)
def test_a_record_is_as_long_as_it_says(count: int) -> None:
    """The last record's value claims one byte more, and one less."""
    body = bytearray(_bodies(count, b"vv"))
    for change in (2, -2):
        forged = bytearray(body)
        forged[-4] += change  # value length, value, header count
        with pytest.raises(InvalidRecordError):
            _check(_packed(bytes(forged), count))


def test_what_unpacks_to_more_than_the_limit_is_refused_within_it() -> None:
    bomb = _packed(bytes(10_000_000), 1, Codec.ZSTD)
    with pytest.raises(BatchTooLargeError):
        check_records(memoryview(bomb), read_header(memoryview(bomb)), RecordWork(1_000_000, 1_000))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_what_does_not_unpack_is_corrupt(codec: Codec) -> None:
    packed = compress(codec, _bodies(3))
    broken = packed[: len(packed) // 2]
    batch = plain_batch()[:HEADER_BYTES] + broken
    batch = forge(batch, batch_length=49 + len(broken), last_offset_delta=2, record_count=3, attributes=int(codec))
    with pytest.raises((CorruptError, InvalidRecordError)):
        _check(batch)


@settings(max_examples=examples(300))
@given(
    st.sampled_from([3, 80, _MANY]),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_what_passes_can_be_read(count: int, changes: list[tuple[int, int]]) -> None:
    """Any change of bytes: it is refused by name, or every record can be decoded."""
    body = bytearray(_bodies(count, b"value"))
    for at, byte in changes:
        body[at % len(body)] = byte
    batch = memoryview(_packed(bytes(body), count))
    try:
        _check(batch)
    except HeadraceError:
        return
    assert len(decode_records(batch)) == count


@settings(max_examples=examples(200))
@given(st.binary(max_size=1_500), st.sampled_from([1, 5, 80, _MANY]))
def test_noise_is_refused_by_name(noise: bytes, count: int) -> None:
    try:
        _check(_packed(noise, count))
    except HeadraceError:
        return
    assert len(decode_records(memoryview(_packed(noise, count)))) == count


@pytest.mark.parametrize("count", [_AT_ONCE, _AT_ONCE + 1, 2 * _AT_ONCE + 5])
def test_large_batches_are_checked_in_steps(count: int) -> None:
    """So that the memory for arithmetic is that of one step."""
    body = _bodies(count)
    assert _check(_packed(body, count)) == len(body)
    with pytest.raises(InvalidRecordError, match="surplus"):
        _check(_packed(body + b"\0", count))
    with pytest.raises(InvalidRecordError, match=r"offsets|surplus"):
        _check(_packed(body[: len(_bodies(_AT_ONCE))] + _bodies(count - 1)[: -1 or None], count))


@pytest.mark.parametrize("count", [1, 60, _MANY])
def test_a_negative_length_of_a_record_is_refused(count: int) -> None:
    body = bytearray(_bodies(count))
    assert body[0] < 0x80
    body[0] |= 1  # -(n + 1), of which n bytes follow
    with pytest.raises(InvalidRecordError):
        _check(_packed(bytes(body), count))


@pytest.mark.parametrize(("length_at", "value"), [(-4, b"v"), (-2, b"")], ids=["key", "value"])
@pytest.mark.parametrize("count", [1, 60, _MANY])
def test_a_length_below_null_is_refused(count: int, length_at: int, value: bytes) -> None:
    """-2 for a key or a value, in a record that is otherwise as long as it says."""
    body = bytearray(_bodies(count, value))
    body[length_at] = 3
    with pytest.raises(InvalidRecordError, match="negative length"):
        _check(_packed(bytes(body), count))


def test_records_and_headers_are_counted() -> None:
    header = [("k", b"v")]
    records = [Record(index, 0, None, b"v", header * (index % 3)) for index in range(150)]
    batch = memoryview(encode_batch(records, base_offset=0))
    assert check_records(batch, read_header(batch)).items == 150 + 150
    with pytest.raises(BatchTooLargeError, match="headers"):
        check_records(batch, read_header(batch), RecordWork(0, 299))
    with pytest.raises(BatchTooLargeError, match="too many records"):
        check_records(batch, read_header(batch), RecordWork(0, 149))


def test_a_large_batch_may_unpack_to_more_than_a_small_one() -> None:
    assert largest(20_000).unpacked_bytes < 33 * 1024 * 1024
    assert largest(10_000_000).unpacked_bytes > 100_000_000
    with pytest.raises(BatchTooLargeError):
        _check(_packed(bytes(100_000_000), 1, Codec.ZSTD))
