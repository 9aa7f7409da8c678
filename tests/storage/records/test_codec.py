"""Records survive every codec; broken, lying and exploding bodies do not get in."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.errors import CorruptError, InvalidError
from headrace.storage.records.check import check_batch
from headrace.storage.records.codec import MAX_OPENED_RECORDS, Record, decode_records, encode_batch, open_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.errors import BatchTooLargeError
from headrace.storage.records.header import HEADER_BYTES, read_header
from tests.seeds import examples
from tests.storage.batches import BASE_TIME_MS, crowded_batch, forge, plain_batch, varint

payloads = st.none() | st.binary(max_size=40)
header_lists = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=8), payloads), max_size=3)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    gaps = draw(st.lists(st.integers(1, 1_000), min_size=1, max_size=20))
    times = st.just(-1) | st.integers(0, 2**45)
    offset = draw(st.integers(0, 2**62))
    records = []
    for gap in gaps:
        records.append(Record(offset, draw(times), draw(payloads), draw(payloads), draw(header_lists)))
        offset += gap
    return records


@settings(max_examples=examples(150), deadline=None)
@given(records=record_lists(), codec=st.sampled_from(Codec), before=st.integers(0, 5), after=st.integers(0, 5))
def test_what_goes_in_comes_out(records: list[Record], codec: Codec, before: int, after: int) -> None:
    base, last = max(0, records[0].offset - before), records[-1].offset + after
    batch = memoryview(encode_batch(records, codec=codec, base_offset=base, last_offset=last))
    header = read_header(batch)
    assert (header.base_offset, header.base_offset + header.last_offset_delta) == (base, last)
    assert (header.codec, header.record_count) == (codec, len(records))
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert decode_records(batch) == records


@pytest.mark.parametrize("codec", list(Codec))
def test_a_built_batch_is_one_that_a_producer_may_send(codec: Codec) -> None:
    records = [Record(i, BASE_TIME_MS, b"k%d" % i, b"value" * 50, [("h", b"1"), ("h", None)]) for i in range(100)]
    batch = memoryview(
        encode_batch(records, codec=codec, base_offset=0, producer_id=5, producer_epoch=1, base_sequence=9)
    )
    header = check_batch(batch, max_bytes=len(batch))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 9)
    assert encode_batch(records, codec=codec, base_offset=0, producer_id=5, producer_epoch=1, base_sequence=9) == bytes(
        batch
    )


def test_log_append_time_reads_as_the_highest_timestamp() -> None:
    records = [Record(0, 5, None, b"a"), Record(1, 3, None, b"b")]
    batch = encode_batch(records, base_offset=0, log_append_time=True)
    assert [record.timestamp for record in decode_records(memoryview(batch))] == [5, 5]


@pytest.mark.parametrize("codec", list(Codec))
def test_another_library_s_batches_open(codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for i in range(50):
        builder.append(i, BASE_TIME_MS + i, b"key", b"value" * 20, [("name", b"x")])
    records = decode_records(memoryview(builder.build()))
    assert records == [Record(i, BASE_TIME_MS + i, b"key", b"value" * 20, [("name", b"x")]) for i in range(50)]


def test_raw_snappy_opens_as_well_as_framed() -> None:
    plain = plain_batch(30, b"abc" * 30)
    packed = bytes(cramjam.snappy.compress_raw(plain[HEADER_BYTES:]))
    batch = with_body(plain, packed, attributes=Codec.SNAPPY)
    assert decode_records(memoryview(batch)) == decode_records(memoryview(plain))


def test_snappy_is_framed_block_by_block() -> None:
    records = [Record(0, 1, None, bytes(range(256)) * 400)]
    assert decode_records(memoryview(encode_batch(records, codec=Codec.SNAPPY, base_offset=0))) == records


@pytest.mark.parametrize("tail", [b"\0\0", b"\0\0\0\0", b"\xff\xff\xff\xfc", b"\0\0\0\x09\0"], ids=bytes.hex)
def test_broken_snappy_framing_is_corrupt(tail: bytes) -> None:
    framed = encode_batch([Record(0, 1, None, b"v")], codec=Codec.SNAPPY, base_offset=0)
    with pytest.raises(CorruptError, match="codec=snappy"):
        decode_records(memoryview(with_body(framed, framed[HEADER_BYTES:] + tail)))


def with_body(batch: bytes, body: bytes, **fields: int) -> bytes:
    """The header of `batch` over another body, checksum redone."""
    return forge(batch[:HEADER_BYTES] + body, batch_length=HEADER_BYTES - 12 + len(body), **fields)


PACK: dict[Codec, Callable[[bytes], Any]] = {
    Codec.GZIP: cramjam.gzip.compress,
    Codec.SNAPPY: cramjam.snappy.compress_raw,
    Codec.LZ4: cramjam.lz4.compress,
    Codec.ZSTD: cramjam.zstd.compress,
}


@pytest.mark.parametrize("codec", list(PACK))
def test_a_bomb_is_refused_before_it_fills_memory(codec: Codec) -> None:
    bomb = with_body(plain_batch(), bytes(PACK[codec](bytes(100_000_000))), attributes=codec)
    tracemalloc.start()
    try:
        with pytest.raises(BatchTooLargeError):
            decode_records(memoryview(bomb), max_opened_bytes=1_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize("codec", list(Codec))
def test_the_bound_is_on_opened_bytes(codec: Codec) -> None:
    batch = memoryview(encode_batch([Record(0, 1, None, bytes(10_000))], codec=codec, base_offset=0))
    assert len(decode_records(batch, max_opened_bytes=10_100)) == 1
    with pytest.raises(BatchTooLargeError):
        decode_records(batch, max_opened_bytes=10_000)


def test_a_batch_is_read_record_by_record() -> None:
    """This is what is in memory is its bytes, never an object per record: fifty times as much."""
    opened = open_batch(memoryview(plain_batch(50_000, b"")))
    tracemalloc.start()
    try:
        assert sum(1 for _ in opened) == 50_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    assert [record.offset for record in opened] == list(range(50_000)), "it can be read again"


def test_too_many_records_to_open_are_detected_from_the_header() -> None:
    """This is what a producer may send in 5,849 bytes: 9,000,000 records. Nothing is unpacked."""
    limits: dict[str, int]
    for count, limits in ((MAX_OPENED_RECORDS + 1, {}), (9_000_000, {}), (100_000, {"max_opened_bytes": 699_999})):
        batch = crowded_batch(count)
        check_batch(batch, max_bytes=6_000)
        tracemalloc.start()
        try:
            with pytest.raises(BatchTooLargeError):
                decode_records(batch, **limits)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 10_000


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x0c\x00\x00\x00\x01\x02v", id="truncated batch"),
        pytest.param(b"\x10\x00\x00\x00\x01\x02v\x00", id="record longer than its fields"),
        pytest.param(b"\x0e\x00\x00\x00\x01\x02v\x00\x00", id="bytes left over"),
        pytest.param(b"\x0e\x00\x00\x00" + varint(2**62) + b"v\x00\x00", id="key beyond memory"),
        pytest.param(b"\x0e\x00\x00\x00" + varint(2**63 - 1) + b"v\x00\x00", id="key length overflows"),
        pytest.param(b"\x0e\x00\x00\x00" + varint(2**63 - 60) + b"v\x00\x00", id="key length nearly overflows"),
        pytest.param(b"\x0e\x00\x00\x00" + b"\xff" * 30, id="endless varint"),
        pytest.param(b"\x0e\x00\x00\x00\x01\x02v" + varint(2**40), id="headers without end"),
        pytest.param(b"\x0e\x00\x00\x00\x01\x02v" + varint(-1), id="negative header count"),
        pytest.param(b"\x0e\x00\x00\x00\x01\x02v\x80", id="varint cut off at the end"),
        pytest.param(b"\x14\x00\x00\x00\x01\x02v\x02\x02\xff\x01", id="header name is not utf-8"),
        pytest.param(b"\x0e\x00\x00\x02\x01\x02v\x00", id="offset beyond the batch"),
        pytest.param(b"\x0e\x00\x00\x01\x01\x02v\x00", id="offset before the batch"),
    ],
)
def test_broken_records_are_corrupt(body: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_records(memoryview(with_body(plain_batch(), body)))


@pytest.mark.parametrize("claimed", [0, 1, 3, 10**9, -1])
def test_a_wrong_record_count_is_corrupt(claimed: int) -> None:
    with pytest.raises(CorruptError):
        decode_records(memoryview(forge(plain_batch(2), record_count=claimed)))


@pytest.mark.parametrize("fields", [{"record_count": -1}, {"record_count": 0, "last_offset_delta": -1}], ids=str)
def test_negative_counts_are_corrupt_even_without_records(fields: dict[str, int]) -> None:
    with pytest.raises(CorruptError, match="negative counts"):
        decode_records(memoryview(with_body(plain_batch(), b"", **fields)))


@pytest.mark.parametrize("fields", [{"crc": 7}, {"magic": 1}, {"attributes": 5}, {"batch_length": 50}], ids=str)
def test_only_sound_batches_are_opened(fields: dict[str, int]) -> None:
    with pytest.raises(CorruptError):
        decode_records(memoryview(forge(plain_batch(), **fields)))
    with pytest.raises(CorruptError):
        decode_records(memoryview(plain_batch()[:40]))


@settings(max_examples=examples(400), deadline=None)
@given(codec=st.sampled_from(Codec), data=st.data())
def test_damage_under_a_valid_checksum_is_corrupt_or_harmless(codec: Codec, data: st.DataObject) -> None:
    """With a CRC over damaged bytes a reader gets CorruptError or different records, never a crash."""
    records = [Record(i, BASE_TIME_MS, b"k", b"value" * i, [("h", b"x")]) for i in range(5)]
    body = bytearray(encode_batch(records, codec=codec, base_offset=0)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(body)) | st.just(len(body)))
    header = encode_batch(records, codec=codec, base_offset=0)[:HEADER_BYTES]
    batch = memoryview(with_body(header, bytes(body[:end])))
    try:
        opened = decode_records(batch)
    except CorruptError:
        return
    assert [record.offset for record in opened] == [0, 1, 2, 3, 4]


def test_builders_get_the_reason_of_a_refusal() -> None:
    one = Record(5, 1, None, b"v")
    with pytest.raises(InvalidError, match="needs a record"):
        encode_batch([], base_offset=0)
    with pytest.raises(InvalidError, match="do not rise"):
        encode_batch([one, one], base_offset=0)
    with pytest.raises(InvalidError, match="do not rise"):
        encode_batch([one], base_offset=6)
    with pytest.raises(InvalidError, match="do not fit"):
        encode_batch([one], base_offset=0, last_offset=4)
    with pytest.raises(InvalidError, match="do not fit"):
        encode_batch([one], base_offset=0, last_offset=2**31)
    with pytest.raises(InvalidError, match="time does not fit"):
        encode_batch([one, Record(6, -(2**63), None, None)], base_offset=0)
