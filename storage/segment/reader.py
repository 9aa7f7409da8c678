"""Reads a segment file without Postgres: its footer, its batches, and their validity.

Place: fetches iterate over extents; compactors, audits and rebuilds read footers.
Invariant: bytes that are not a complete, unaltered segment file raise only CorruptError
(a store's errors pass through), and no value in them determines how much memory is allocated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter

from headrace.storage.errors import CorruptError
from headrace.storage.objects.store import ByteRange, ObjectStore
from headrace.storage.records.header import HEADER_BYTES, MAGIC, BatchHeader, batch_crc, read_header
from headrace.storage.segment.format import (
    SEGMENT_HEADER,
    Footer,
    PartitionEntry,
    PartitionSummary,
    decode_footer,
    tail_bytes,
)

TAIL_BYTES = 64 * 1024
"""Size of the first read of a footer: enough for about 800 partitions."""


def read_footer(tail: bytes | memoryview, object_size: int) -> Footer:
    """The footer of an object of `object_size` bytes, from its last bytes.

    CorruptError if they contain no valid footer, or only a part of it.
    """
    return decode_footer(tail, object_size)


async def load_footer(store: ObjectStore, key: str, size: int) -> Footer:
    """The object's footer, in one ranged read, or two if it is larger than 64 KiB. `size` in bytes."""
    first = min(size, TAIL_BYTES)
    if first <= 0:
        raise CorruptError(f"segment file too short: key={key} size={size}")
    tail = await store.get(key, ByteRange(size - first, first))
    needed = tail_bytes(tail, size)
    if needed > len(tail):
        tail = await store.get(key, ByteRange(size - needed, needed - len(tail))) + tail
    return decode_footer(tail, size)


def walk_batches(buffer: bytes | memoryview, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(position in `buffer`, header) of each batch from `position` to the buffer's end.

    Checks framing, not checksums. CorruptError if the bytes end inside a batch or are not batches.
    """
    end = len(buffer)
    while position < end:
        if end - position < HEADER_BYTES:
            raise CorruptError(f"truncated batch: position={position} left={end - position}")
        header = read_header(buffer, position)
        size = header.size
        if header.magic != MAGIC or size < HEADER_BYTES or header.last_offset_delta < 0:
            raise CorruptError(f"not a batch: position={position} magic={header.magic} size={size}")
        if size > end - position:
            raise CorruptError(f"truncated batch: position={position} size={size} left={end - position}")
        yield position, header
        position += size


def verify_segment(data: bytes | memoryview) -> Footer:
    """Verify every byte of a whole file: each batch's CRC, and that the footer matches the batches.

    Returns the footer; CorruptError names the first mismatch.
    """
    view = memoryview(data)
    footer = decode_footer(view, len(view))
    if view[: len(SEGMENT_HEADER)] != SEGMENT_HEADER:
        raise CorruptError("segment header is not this version's")
    for entry in footer.partitions:
        if _summarise(view, entry, footer.index_interval_bytes) != entry:
            raise CorruptError(
                f"segment footer contradicts its batches: topic_id={entry.topic_id} partition={entry.partition_index}"
            )
    return footer


def start_at_record(entry: PartitionEntry, record_position: int) -> tuple[int, int]:
    """(record position, byte position) at which to start for the partition's record `record_position`, from 0."""
    return _start(entry, bisect_right(entry.index_entries, record_position, key=attrgetter("record_position")))


def start_at_timestamp(entry: PartitionEntry, timestamp_ms: int) -> tuple[int, int]:
    """(record position, byte position) at which to start: every record before it is older than `timestamp_ms`."""
    return _start(entry, bisect_left(entry.index_entries, timestamp_ms, key=attrgetter("max_timestamp")))


def _start(entry: PartitionEntry, entries_passed: int) -> tuple[int, int]:
    if entries_passed == 0:
        return 0, entry.position
    found = entry.index_entries[entries_passed - 1]
    return found.record_position, found.position


def _summarise(view: memoryview, entry: PartitionEntry, index_interval_bytes: int) -> PartitionEntry:
    """The footer entry computed from the entry's bytes alone."""
    summary = PartitionSummary(
        entry.topic_id, entry.partition_index, entry.partition_key, entry.position, index_interval_bytes
    )
    run = view[entry.position : entry.position + entry.length]
    for position, header in walk_batches(run):
        batch = run[position : position + header.size]
        if batch_crc(batch) != header.crc:
            raise CorruptError(f"batch checksum mismatch: position={entry.position + position} size={len(batch)}")
        summary.add(batch, header)
    return summary.entry()
