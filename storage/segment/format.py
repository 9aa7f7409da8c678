"""The bytes of a segment file that are not batches: header, footer, trailer (docs/understand/FORMAT.md).

Place: used by writer.py, which asks for an entry at every byte position, and by reader.py for its full verification.
Invariant: header and trailer have the same size and place in every version, so a reader can always name an unknown
version. A valid footer is sorted, and its entries cover the bytes between header and footer without gap or overlap.
Invariant of an entry computed from batches: the entry depends only on the batches and the index interval.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import crc32c

from headrace.storage.errors import CorruptError, InvalidError
from headrace.storage.records.header import (
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    BatchHeader,
)

VERSION = 1
HEADER = struct.Struct(">8sH6x")
TRAILER = struct.Struct(">IHHI8s")
"""Footer length, zeros, version, CRC32C of the footer and the eight bytes before itself, end magic."""

SEGMENT_HEADER = HEADER.pack(b"HEADRACE", VERSION)
BODY_START = HEADER.size
INDEX_INTERVAL_BYTES = 256 * 1024
"""A partition gets an index entry after at least this many bytes since the last one."""
MAX_FOOTER_BYTES = 64 * 1024 * 1024
"""Room for 800,000 partitions; a footer with a larger length is invalid."""

_END_MAGIC = b"ECARDAEH"
_CRC_COVERED_TRAILER_BYTES = 8
_COUNTS = struct.Struct(">III")
_ENTRY = struct.Struct(">16siqqqIqqqII")
_INDEX_ENTRY = struct.Struct(">qqq")


class IndexEntry(NamedTuple):
    """A batch inside a partition's bytes at which a reader may start."""

    record_position: int
    """Records of the partition in this file before that batch (last offset deltas + 1)."""
    max_timestamp: int
    """The highest timestamp before that batch, ms."""
    position: int
    """The byte position in the file at which the batch starts."""


class PartitionEntry(NamedTuple):
    """A file's content of one partition: one contiguous range of bytes. Times in ms, positions and lengths in
    bytes."""

    topic_id: uuid.UUID
    partition_index: int
    partition_key: int
    position: int
    length: int
    batch_count: int
    record_count: int
    """Number of offsets of the batches: the sum of last offset delta + 1."""
    min_timestamp: int
    """The lowest base timestamp of a batch (max timestamp under LogAppendTime, or with a delete horizon)."""
    max_timestamp: int
    prefix_crc: int
    """CRC32C over the first 21 bytes of every batch: the bytes that the batch's CRC does not cover, and that CRC."""
    index_entries: tuple[IndexEntry, ...]


@dataclass(frozen=True, slots=True)
class Footer:
    """A segment file's table of contents; `partitions` sorted by topic id, then partition index."""

    object_size: int
    index_interval_bytes: int
    partitions: tuple[PartitionEntry, ...]


def encode_footer(partitions: Sequence[PartitionEntry], index_interval_bytes: int) -> bytes:
    """Return footer and trailer. InvalidError if the footer would be larger than readers accept."""
    index = [entry for partition in partitions for entry in partition.index_entries]
    rows = [_packed(partition) for partition in partitions]
    index_rows = [_INDEX_ENTRY.pack(*entry) for entry in index]
    footer = b"".join((_COUNTS.pack(len(partitions), len(index), index_interval_bytes), *rows, *index_rows))
    if len(footer) > MAX_FOOTER_BYTES:
        raise InvalidError(f"too many partitions for one segment file: partitions={len(partitions)}")
    without_crc = TRAILER.pack(len(footer), 0, VERSION, 0, _END_MAGIC)
    crc = crc32c.crc32c(without_crc[:_CRC_COVERED_TRAILER_BYTES], crc32c.crc32c(footer))
    return footer + TRAILER.pack(len(footer), 0, VERSION, crc, _END_MAGIC)


def _packed(partition: PartitionEntry) -> bytes:
    """Return the row of a partition: its fields, with the number of its index entries in their place."""
    topic_id, *numbers, index_entries = partition
    return _ENTRY.pack(topic_id.bytes, *numbers, len(index_entries))


def tail_bytes(tail: bytes | memoryview, object_size: int) -> int:
    """The number of bytes at the object's end that hold footer and trailer. Reads only the trailer, the end of
    `tail`.

    CorruptError if this is not a segment file, has an unknown version, or has an impossible length.
    """
    if len(tail) < TRAILER.size:
        raise CorruptError(f"segment file too short: size={object_size} tail={len(tail)}")
    length, _, version, _, magic = TRAILER.unpack_from(tail, len(tail) - TRAILER.size)
    if magic != _END_MAGIC:
        raise CorruptError(f"segment file has no end magic: size={object_size}")
    if version != VERSION:
        raise CorruptError(f"segment file of an unknown version: version={version} known={VERSION}")
    if not _COUNTS.size <= length <= min(MAX_FOOTER_BYTES, object_size - BODY_START - TRAILER.size):
        raise CorruptError(f"segment footer length cannot be: length={length} size={object_size}")
    return int(length) + TRAILER.size


def decode_footer(tail: bytes | memoryview, object_size: int) -> Footer:
    """The footer from the object's last bytes; at least `tail_bytes` of them are needed.

    CorruptError unless checksum and entries are valid.
    """
    needed = tail_bytes(tail, object_size)
    if needed > len(tail):
        raise CorruptError(f"segment tail does not hold the footer: tail={len(tail)} needed={needed}")
    end = memoryview(tail)[len(tail) - needed :]
    footer, trailer = end[: -TRAILER.size], end[-TRAILER.size :]
    crc = crc32c.crc32c(trailer[:_CRC_COVERED_TRAILER_BYTES], crc32c.crc32c(footer))
    if crc != TRAILER.unpack(trailer)[3]:
        raise CorruptError(f"segment footer checksum mismatch: size={object_size} footer_bytes={len(footer)}")
    partition_count, index_count, interval = _COUNTS.unpack_from(footer)
    index_start = _COUNTS.size + partition_count * _ENTRY.size
    if partition_count == 0 or index_start + index_count * _INDEX_ENTRY.size != len(footer):
        raise CorruptError(f"segment footer counts do not fit: partitions={partition_count} index={index_count}")
    index = [IndexEntry._make(fields) for fields in _INDEX_ENTRY.iter_unpack(footer[index_start:])]
    partitions = _assemble(footer[_COUNTS.size : index_start], index)
    _check_layout(partitions, object_size - needed)
    return Footer(object_size, interval, partitions)


def _assemble(rows: memoryview, index: list[IndexEntry]) -> tuple[PartitionEntry, ...]:
    """Join each row with its part of the index; CorruptError if the counts do not match."""
    partitions = []
    taken = 0
    for row in _ENTRY.iter_unpack(rows):
        share = tuple(index[taken : taken + row[-1]])
        taken += row[-1]
        partitions.append(PartitionEntry._make((uuid.UUID(bytes=row[0]), *row[1:-1], share)))
    if taken != len(index):
        raise CorruptError(f"segment index entries do not add up: claimed={taken} stored={len(index)}")
    return tuple(partitions)


def _check_layout(partitions: tuple[PartitionEntry, ...], body_end: int) -> None:
    """Check that entries are sorted, without gap or overlap, and that each index is inside its partition."""
    position = BODY_START
    previous = (-1, -1)
    for entry in partitions:
        key = (entry.topic_id.int, entry.partition_index)
        if key <= previous or entry.partition_index < 0 or entry.position != position:
            raise CorruptError(f"segment footer out of order: topic_id={key[0]:032x} partition={key[1]}")
        if entry.batch_count < 1 or entry.length < entry.batch_count * HEADER_BYTES:
            raise CorruptError(f"segment footer counts cannot be: topic_id={key[0]:032x} partition={key[1]}")
        previous, position = key, position + entry.length
        _check_index(entry)
    if position != body_end:
        raise CorruptError(f"segment footer does not cover the file: covered={position} body_end={body_end}")


def _check_index(entry: PartitionEntry) -> None:
    """Check that byte and record positions increase and stay inside the partition."""
    before = IndexEntry(-1, 0, entry.position)
    for mark in entry.index_entries:
        if mark.position <= before.position or mark.record_position <= before.record_position:
            raise CorruptError(f"segment index does not rise: topic_id={entry.topic_id} position={mark.position}")
        before = mark
    if before.position >= entry.position + entry.length or before.record_position >= entry.record_count:
        raise CorruptError(f"segment index leaves its partition: topic_id={entry.topic_id} position={before.position}")


_BASE_IS_NO_TIME = LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT


class PartitionSummary:
    """A partition's bytes in one file, as far as they are laid out."""

    __slots__ = (
        "_batch_count",
        "_index",
        "_index_due",
        "_interval",
        "_max_timestamp",
        "_min_timestamp",
        "_partition_index",
        "_partition_key",
        "_prefix_crc",
        "_record_count",
        "_start",
        "_topic_id",
        "end",
    )

    def __init__(
        self, topic_id: uuid.UUID, partition_index: int, partition_key: int, position: int, index_interval_bytes: int
    ) -> None:
        self._topic_id = topic_id
        self._partition_index = partition_index
        self._partition_key = partition_key
        self._start = self.end = position
        self._interval = index_interval_bytes
        self._index_due = position + index_interval_bytes
        self._index: list[IndexEntry] = []
        self._batch_count = self._record_count = self._prefix_crc = 0
        self._min_timestamp = 2**63 - 1
        self._max_timestamp = -(2**63)

    def add(self, batch: memoryview, header: BatchHeader) -> int:
        """Add the next batch; returns the file position of its first byte."""
        position = self.end
        if position >= self._index_due:
            self._index.append(IndexEntry(self._record_count, self._max_timestamp, position))
            self._index_due = position + self._interval
        # A producer may leave the maximum unset; with LogAppendTime, or a delete horizon, the base is no record's time.
        highest = lowest = header.max_timestamp
        if not header.attributes & _BASE_IS_NO_TIME:
            lowest = header.base_timestamp
        # No min() and max(), and no properties of the header: this runs for every batch.
        if lowest < self._min_timestamp:
            self._min_timestamp = lowest
        if highest < lowest:
            highest = lowest
        if highest > self._max_timestamp:
            self._max_timestamp = highest
        self._prefix_crc = crc32c.crc32c(batch[:CRC_START], self._prefix_crc)
        self._batch_count += 1
        self._record_count += header.last_offset_delta + 1
        self.end = position + len(batch)
        return position

    def entry(self) -> PartitionEntry:
        """The footer entry of the batches added so far."""
        return PartitionEntry(
            self._topic_id,
            self._partition_index,
            self._partition_key,
            self._start,
            self.end - self._start,
            self._batch_count,
            self._record_count,
            self._min_timestamp,
            self._max_timestamp,
            self._prefix_crc,
            tuple(self._index),
        )
