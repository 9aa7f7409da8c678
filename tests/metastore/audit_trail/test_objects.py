"""Objects of the audit trail: what is written is read, their bytes do not change, and damage is found."""

from __future__ import annotations

import uuid
import zlib

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metastore.api.audit_archive import ArchivedAudit
from headrace.metastore.api.segment_states import RemoteSegmentKey
from headrace.metastore.api.segments import SegmentCause, SegmentEvent, SegmentFacts
from headrace.metastore.audit_trail import (
    BLOCK_BYTES_MAX,
    BLOCK_RECORDS,
    MAGIC,
    Block,
    ObjectWriter,
    decode_block,
    decode_index,
    epoch_of,
    verified_blocks,
)
from headrace.storage.errors import CorruptError, InvalidError

INT32, INT64 = st.integers(-1, 2**31 - 1), st.integers(-1, 2**63 - 1)
ids = st.uuids(allow_nil=True)
EVENTS = st.lists(
    st.builds(
        SegmentEvent,
        metadata_partition=st.just(7),
        audit_offset=INT64,
        log_offset=INT64,
        api_key=st.integers(0, 2),
        key=st.builds(RemoteSegmentKey, ids, INT32, INT64, INT32),
        state=st.integers(0, 3),
        cause=st.sampled_from(SegmentCause),
        broker_id=INT32,
        event_ms=INT64,
        segment_id=st.none() | ids,
        file_id=st.none() | ids,
        job_id=st.none() | INT64,
        facts=st.none() | st.builds(SegmentFacts, INT64, INT32, INT64, INT64),
    ),
    min_size=1,
    max_size=8,
)
PLAIN = (
    "929fcf7fffffffffffffffcf7fffffffffffffff02c410ffffffffffffffffffffffffffffffffce7fffffffcf7fffffffff"
    "ffffffce7fffffff0306ce7fffffffcf7fffffffffffffffc410ffffffffffffffffffffffffffffffffc410ffffffffffff"
    "ffffffffffffffffffffcf7fffffffffffffff94cf7fffffffffffffffce7fffffffcf7fffffffffffffffcf7fffffffffff"
    "ffff9f050902c410000000000000000000000000000000010064030103ffcd03e8c0c0c0c0"
)
"""MessagePack of the events of test_the_layout_does_not_change."""
LARGEST = SegmentEvent(
    *(49, 2**63 - 1, 2**63 - 1, 2),
    RemoteSegmentKey(uuid.UUID(int=2**128 - 1), 2**31 - 1, 2**63 - 1, 2**31 - 1),
    *(3, SegmentCause.KEYED, 2**31 - 1, 2**63 - 1, uuid.UUID(int=2**128 - 1), uuid.UUID(int=2**128 - 1), 2**63 - 1),
    SegmentFacts(2**63 - 1, 2**31 - 1, 2**63 - 1, 2**63 - 1),
)


def sealed(body: bytes) -> bytes:
    return crc32c.crc32c(body).to_bytes(4, "big") + body


def written(*blocks: list[SegmentEvent]) -> tuple[bytes, ArchivedAudit]:
    """An object and its row."""
    writer = ObjectWriter()
    for events in blocks:
        writer.add(events)
    data, index_size = writer.finish()
    span = blocks[0][0].audit_offset, blocks[-1][-1].audit_offset, sum(map(len, blocks))
    return data, ArchivedAudit(7, *span, 0, len(data), index_size, 12)


def read(data: bytes, row: ArchivedAudit) -> list[list[SegmentEvent]]:
    """Block by block, as a reader does."""
    blocks = decode_index(data[len(data) - row.index_size :], row)
    return [decode_block(data[b.position : b.position + b.length], b, row) for b in blocks]


def numbered(first: int, count: int) -> list[SegmentEvent]:
    """Large ones, with offsets in order."""
    return [LARGEST._replace(metadata_partition=7, audit_offset=first + n) for n in range(count)]


@given(EVENTS)
def test_what_is_written_is_read(events: list[SegmentEvent]) -> None:
    data, row = written(events)
    (found,) = read(data, row)
    assert found == events
    assert [type(event.cause) for event in found] == [SegmentCause] * len(events)


def test_objects_are_joined_as_they_are() -> None:
    one, two, three = numbered(0, 3), numbered(3, 1), numbered(900, 5)
    writer = ObjectWriter()
    for data, row in (written(one, two), written(three)):
        writer.add_object(verified_blocks(data, row))
    data, index_size = writer.finish()
    assert read(data, ArchivedAudit(7, 0, 904, 9, 0, len(data), index_size, 13)) == [one, two, three]


def test_the_layout_does_not_change() -> None:
    """Objects of earlier releases are kept for 90 days."""
    events = [
        LARGEST._replace(metadata_partition=7),
        SegmentEvent(
            *(7, 5, 9, 2, RemoteSegmentKey(uuid.UUID(int=1), 0, 100, 3), 1, SegmentCause.PARTITION_DELETED, -1),
            *(1_000, None, None, None, None),
        ),
    ]
    block = sealed(zlib.compress(bytes.fromhex(PLAIN)))
    index = sealed(bytes.fromhex("9195cf7fffffffffffffff050204cc") + bytes([len(block)]))
    stored = MAGIC + block + index
    row = ArchivedAudit(7, LARGEST.audit_offset, 5, 2, 0, len(stored), len(index), 12)
    assert read(stored, row) == [events]
    data, same = written(events)
    assert zlib.decompress(data[8 : -same.index_size]).hex() == PLAIN


def test_a_block_is_bounded_with_the_largest_records() -> None:
    """Each of the largest record, and as if nothing was compressed."""
    data, row = written([LARGEST])
    plain = zlib.decompress(data[8 : -row.index_size])
    assert len(plain) * BLOCK_RECORDS * 1001 // 1000 + 1_000 < BLOCK_BYTES_MAX
    with pytest.raises(InvalidError, match="too many records"):
        written(numbered(0, 2 * BLOCK_RECORDS))


def test_damage_is_found() -> None:
    data, row = written(numbered(0, 3), numbered(3, 3))
    for at in range(len(MAGIC), len(data), 3):
        with pytest.raises(CorruptError):
            read(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], row)
    for wrong in (row._replace(last_offset=6), row._replace(records=5), row._replace(index_size=5)):
        with pytest.raises(CorruptError):
            read(data, wrong)
    other, _ = written(numbered(0, 3), numbered(2, 3))
    with pytest.raises(CorruptError, match="out of order"):
        read(other, row._replace(last_offset=4))
    bomb = sealed(zlib.compress(b"\0" * (64 * BLOCK_BYTES_MAX)))
    with pytest.raises(CorruptError):
        decode_block(bomb, Block(0, 1, 2, 0, len(bomb)), row)


def test_the_epoch_of_a_key() -> None:
    key = written([LARGEST])[1].object_key
    assert key.startswith("metastore/audit-trail/07/")
    assert epoch_of(key) == 12
    for other in ("metastore/audit-trail/07/x", "metastore/audit-trail/07/1-2-x", "metastore/audit-trail/07/1-2-3-4"):
        assert epoch_of(other) is None
