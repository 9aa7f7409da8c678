"""Offsets are patched under the checksum, times above it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.records.codec import decode_records, encode_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import (
    PATCHED_BYTES,
    batch_crc,
    patch_offset,
    patched_header,
    read_header,
    stamp_log_append_time,
)
from tests.storage.batches import plain_batch

offsets = st.integers(0, 2**63 - 1)
epochs = st.integers(-1, 2**31 - 1)


@given(base_offset=offsets, leader_epoch=epochs)
def test_patching_in_place_leaves_everything_else(base_offset: int, leader_epoch: int) -> None:
    stored = plain_batch(3)
    batch = bytearray(stored)
    patch_offset(batch, base_offset, leader_epoch)
    header = read_header(batch)
    assert header == read_header(stored)._replace(base_offset=base_offset, leader_epoch=leader_epoch)
    assert batch[PATCHED_BYTES:] == stored[PATCHED_BYTES:]
    assert batch_crc(memoryview(batch)) == header.crc


@given(base_offset=offsets, leader_epoch=epochs)
def test_a_patched_header_before_stored_bytes_is_the_same_batch(base_offset: int, leader_epoch: int) -> None:
    stored = plain_batch(3)
    expected = bytearray(stored)
    patch_offset(memoryview(expected), base_offset, leader_epoch)
    new = patched_header(read_header(stored).batch_length, base_offset, leader_epoch)
    assert new + stored[PATCHED_BYTES:] == expected


def test_records_are_read_at_their_patched_offsets() -> None:
    batch = bytearray(plain_batch(3))
    patch_offset(batch, 1_000, 4)
    assert [record.offset for record in decode_records(memoryview(batch))] == [1_000, 1_001, 1_002]


@pytest.mark.parametrize("codec", list(Codec))
def test_log_append_time_rules_every_record(codec: Codec) -> None:
    records = decode_records(memoryview(plain_batch(4)))
    batch = bytearray(encode_batch(records, codec=codec, base_offset=0))
    before = read_header(batch)
    stamp_log_append_time(batch, 1_800_000_000_123)
    after = read_header(batch)
    assert after.is_log_append_time
    assert after.codec == codec
    assert (after.base_timestamp, after.max_timestamp) == (before.base_timestamp, 1_800_000_000_123)
    assert after.crc == batch_crc(memoryview(batch)) != before.crc
    stamped = decode_records(memoryview(batch))
    assert stamped == [record._replace(timestamp=1_800_000_000_123) for record in records]


def test_stamping_again_only_moves_the_time() -> None:
    once, twice = bytearray(plain_batch()), bytearray(plain_batch())
    stamp_log_append_time(once, 7)
    stamp_log_append_time(twice, 5)
    stamp_log_append_time(twice, 7)
    assert once == twice
