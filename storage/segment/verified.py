"""Stored batches with checked bytes: the only form in which code that writes gets what it read.

Place: above reader.py's framing; rereading.py reads until the check succeeds. Merges, passes of cleaning by key,
tables, exports and put-back take SoundBatch, so an unverified batch is a type error there.
Invariant: a SoundBatch has a correct CRC, because making one checks it. What the CRC does not cover is the metastore's:
`sound_batches` sets base offset and leader epoch from the extent's row, and compares length, magic and the sum of the
offsets with it. An extent is sound as a whole: of one with a wrong batch there are no batches.
"""

from __future__ import annotations

import uuid
from typing import Protocol, final

from headrace.storage.errors import CorruptError
from headrace.storage.records.header import HEADER_BYTES, MAGIC, BatchHeader, batch_crc, patch_offset, read_header
from headrace.storage.segment.reader import walk_batches

NO_EPOCH = -1
"""The leader epoch of batches for readers that do not ask for it."""


class StoredExtent(Protocol):
    """What the metastore says of a run of batches. Position and length in bytes, offsets inclusive."""

    @property
    def file_id(self) -> uuid.UUID: ...
    @property
    def position(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...


@final
class SoundBatch:
    """A complete batch with a correct CRC, its real offset and its leader epoch, in bytes that do not change."""

    __slots__ = ("data", "header")

    header: BatchHeader
    data: memoryview

    def __init__(self, data: memoryview, offset: int, leader_epoch: int) -> None:
        """Check the batch in `data`, which is writable and the caller's no longer, then set offset and epoch.

        CorruptError if it is not one complete batch with this CRC.
        """
        if len(data) < HEADER_BYTES:
            raise CorruptError(f"batch shorter than its header: offset={offset} bytes={len(data)}")
        header = read_header(data)
        if header.magic != MAGIC or header.size != len(data) or header.last_offset_delta < 0:
            raise CorruptError(f"not a batch: offset={offset} bytes={len(data)} magic={header.magic}")
        if batch_crc(data) != header.crc:
            raise CorruptError(f"batch checksum mismatch: offsets={offset}-{offset + header.last_offset_delta}")
        patch_offset(data, offset, leader_epoch)
        self.header = BatchHeader(offset, header.batch_length, leader_epoch, *header[3:])
        self.data = data.toreadonly()

    @property
    def offset(self) -> int:
        """Its real base offset."""
        return self.header.base_offset

    @property
    def last_offset(self) -> int:
        """The last offset that it covers."""
        return self.header.base_offset + self.header.last_offset_delta


def sound_batches(
    data: memoryview, extent: StoredExtent, *, leader_epoch: int, start: int = 0, end: int | None = None
) -> list[SoundBatch]:
    """Copy the batches of an extent that have an offset in [start, end), all of them if `end` is None. O(bytes).

    CorruptError unless `data` is complete batches with exactly the extent's length and offsets, and each returned one
    is sound.
    """
    if len(data) != extent.length:
        raise CorruptError(f"extent has another length: bytes={len(data)} expected={extent.length}")
    view = memoryview(bytearray(data))
    offset = extent.base_offset
    batches = []
    for position, header in walk_batches(view):
        next_offset = offset + header.last_offset_delta + 1
        if next_offset > start and (end is None or offset < end):
            batches.append(SoundBatch(view[position : position + header.size], offset, leader_epoch))
        offset = next_offset
    if offset != extent.last_offset + 1:
        raise CorruptError(f"extent ends at a wrong offset: offset={offset} expected={extent.last_offset + 1}")
    return batches
