"""A marker's row and its batch say the same, and no file is taken for a marker."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metastore.api.read import Extent, is_in_file
from headrace.metastore.transaction_markers import MARKER_BYTES, Marker, marker_file_id, marker_of, render_marker
from headrace.storage.file_id import new_file_id
from headrace.storage.records.codec import decode_records
from headrace.storage.records.header import read_header


@given(st.builds(Marker, st.integers(0, 2**63 - 1), st.integers(0, 32_767), st.booleans()))
def test_a_file_id_says_which_marker_it_is(marker: Marker) -> None:
    assert marker_of(marker_file_id(marker)) == marker


def test_no_file_is_a_marker() -> None:
    rng = random.Random(3)
    assert all(marker_of(new_file_id(now_ms, rng)) is None for now_ms in range(0, 2**40, 2**34))


@pytest.mark.parametrize("commits", [False, True])
def test_a_marker_is_rendered_as_kafkas_control_batch(commits: bool) -> None:
    marker = Marker(4711, 6, commits)
    extent = Extent(1, 42, 42, marker_file_id(marker), 1_700_000_000_000, MARKER_BYTES, 3, -1)
    assert (extent.file_id, is_in_file(extent), extent.newest_ms) == (None, False, 1_700_000_000_000)
    in_file = extent._replace(source=new_file_id(1_700_000_000_000, random.Random(1)))
    assert (in_file.file_id, is_in_file(in_file), in_file.newest_ms) == (in_file.source, True, None)
    assert in_file._replace(max_timestamp=5).newest_ms == 5
    batch = memoryview(render_marker(extent))
    header = read_header(batch)
    assert len(batch) == header.size == MARKER_BYTES
    assert header.is_control
    assert header.is_transactional
    assert (header.base_offset, header.leader_epoch, header.record_count) == (42, 3, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4711, 6, -1)
    (record,) = decode_records(batch)
    # Kafka's EndTransactionMarker: version and type in the key; version and coordinator epoch in the value
    assert record.key == bytes([0, 0, 0, commits])
    assert record.value == bytes(6)
    assert (record.offset, record.timestamp) == (42, 1_700_000_000_000)
