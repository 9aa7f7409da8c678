"""Batches as columns: the same records as one by one, control batches left out, broken batches named."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is needed: make setup")

from headrace.scan.columns import arrow_schema, record_batches
from headrace.scan.errors import UnreadableFileError
from headrace.scan.options import COLUMNS
from headrace.scan.plan import ExtentSlice
from headrace.scan.read import SlicedExtent
from headrace.storage.errors import CorruptError
from headrace.storage.records.codec import Record, encode_batch, open_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import CONTROL_BIT, TRANSACTIONAL_BIT
from headrace.storage.segment.verified import NO_EPOCH, SoundBatch, sound_batches
from tests.storage.batches import crowded_batch, forge, plain_batch

LAST_MS = (2**63 - 1) // 1_000
contents = st.lists(
    st.tuples(
        st.integers(1, 5), st.integers(-1, 2**41), st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=99)
    ),
    min_size=1,
    max_size=20,
)


@given(contents, st.sampled_from(Codec), st.booleans())
def test_columns_are_the_records(content: list[tuple[Any, ...]], codec: Codec, by_broker: bool) -> None:
    records, offset = [], 99
    for gap, *rest in content:
        offset += gap
        records.append(Record(offset, *rest, [("h", b"x")] if gap == 1 else []))
    opened = open_batch(memoryview(encode_batch(records, codec=codec, base_offset=100, log_append_time=by_broker)))
    columns = opened.columns()
    listed = [Record(*fields) for fields in zip(*(list(column) for column in columns), strict=True)]
    assert listed == list(opened)
    part = columns.between(102, 107)
    assert list(part.offsets) == [record.offset for record in records if 102 <= record.offset < 107]
    assert part.values == [record.value for record in records if 102 <= record.offset < 107]


def test_offsets_that_do_not_rise_are_an_error() -> None:
    with pytest.raises(CorruptError, match="record offsets do not rise inside their batch"):
        open_batch(crowded_batch(50)).columns()
    with pytest.raises(CorruptError, match="broken record"):
        open_batch(memoryview(forge(plain_batch(2, b"v" * 20), record_count=3, last_offset_delta=2))).columns()


def rows(data: bytes, last_offset: int) -> list[dict[str, Any]]:
    return [
        row
        for batch in record_batches(batches_of(data, last_offset), arrow_schema(COLUMNS))
        for row in batch.to_pylist()
    ]


def batches_of(data: bytes, last_offset: int) -> list[tuple[SlicedExtent, SoundBatch]]:
    extent = ExtentSlice(uuid.UUID(int=7), 0, len(data), 10, last_offset, 10, last_offset + 1)
    place = SlicedExtent("orders", 3, extent)
    return [(place, batch) for batch in sound_batches(memoryview(data), extent, leader_epoch=NO_EPOCH)]


def test_a_transactions_markers_are_no_rows() -> None:
    bits = TRANSACTIONAL_BIT | CONTROL_BIT
    data = plain_batch(2, attributes=TRANSACTIONAL_BIT) + plain_batch(1, attributes=bits) + plain_batch(1)
    assert [row["offset"] for row in rows(data, 13)] == [10, 11, 13]


def test_a_batch_that_cannot_be_opened_is_named() -> None:
    broken = forge(plain_batch(2, b"v" * 20), record_count=3, last_offset_delta=2)
    with pytest.raises(UnreadableFileError, match=r"topic=orders partition=3 .* batch=11-13: broken record"):
        rows(plain_batch(1) + broken, 13)


@pytest.mark.parametrize("time_ms", [-(2**63), -1, 0, 1_700_000_000_000_000_000, 2**63 - 1])
def test_a_time_without_a_microsecond_is_the_closest_one(time_ms: int) -> None:
    data = encode_batch([Record(10, time_ms, b"k", b"v")], base_offset=10)
    (batch,) = record_batches(batches_of(data, 10), arrow_schema(COLUMNS))
    (shown,) = batch.column("timestamp").cast("int64").to_pylist()
    assert shown == min(max(time_ms, -LAST_MS), LAST_MS) * 1_000
