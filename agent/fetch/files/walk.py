"""The batches of one extent: validated one after another, put together for a reader with their real offsets.

Place: `walk` is under everything that opens an extent: delivery, search for an offset, look-up of a timestamp.
Batches is the last step of the read path before the reply is encoded.
Invariant: a yielded batch is a complete batch of this extent, with its real offset and a correct
checksum; bytes that contradict their extent raise CorruptError. Checksums cost about 0.06 s of CPU
per GB; bytes that never left this process were verified when they were produced.
An extent's batches are added up to the first that is damaged; base offset and leader epoch are in 16 new bytes in
front of the stored rest, which is not copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from headrace.metastore.api.read import Extent
from headrace.storage.errors import CorruptError
from headrace.storage.records.header import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    PATCHED_BYTES,
    batch_crc,
    patched_header,
)
from headrace.storage.segment.file_range import RangeBytes


class UnsoundBatchError(CorruptError):
    """What is at byte `position` of the file is no sound batch of its extent."""

    def __init__(self, why: str, extent: Extent, position: int) -> None:
        super().__init__(f"{why}: {_where(extent, position)}")
        self.position = position


class BatchStart(NamedTuple):
    """A batch boundary: the byte position in the file, and the offset of the batch that starts there."""

    position: int
    offset: int


class ExtentBatch(NamedTuple):
    """One batch. `data` is all of it, as stored; `offset` and `next_offset` are its real ones."""

    position: int
    offset: int
    next_offset: int
    data: memoryview

    @property
    def next(self) -> BatchStart:
        """The start of the next batch."""
        return BatchStart(self.position + len(self.data), self.next_offset)


# The header fields that the iteration needs (storage/records/header.py), at a third of the cost of all of them:
# batch length, magic, CRC, last offset delta; to the header's end.
_FRAMING = struct.Struct(">8xi4xbI2xi34x")


def start_of(extent: Extent) -> BatchStart:
    """The start of its first batch."""
    return BatchStart(extent.position, extent.base_offset)


def walk(extent: Extent, body: RangeBytes, start: BatchStart) -> Iterator[ExtentBatch]:
    """The extent's batches from `start`, where `body` begins, as far as `body` holds them whole.

    UnsoundBatchError for bytes that are no sound batch of this extent; CorruptError if it ends at a wrong offset.
    """
    data = body.data
    position, offset = start
    at, end = 0, extent.position + extent.length
    while position != end:
        framing = _framing(extent, data, at, position, offset)
        if framing is None:
            return
        size, crc, last_offset_delta = framing
        if at + size > len(data):
            return
        batch = data[at : at + size]
        if not body.checked and batch_crc(batch) != crc:
            raise UnsoundBatchError("batch checksum mismatch", extent, position)
        # Producers' batches have base offset 0 and follow each other without a gap. This is the only place to
        # change when compaction writes batches with other base offsets.
        next_offset = offset + last_offset_delta + 1
        yield ExtentBatch(position, offset, next_offset, batch)
        at += size
        position += size
        offset = next_offset
    if offset != extent.last_offset + 1:
        raise CorruptError(f"extent ends at a wrong offset: offset={offset} {_where(extent, position)}")


def first_size(extent: Extent, body: RangeBytes, start: BatchStart) -> int:
    """The size in bytes of the batch at `start`, of which `body` holds at least the header."""
    framing = _framing(extent, body.data, 0, start.position, start.offset)
    if framing is None:
        raise CorruptError(f"no batch header: {_where(extent, start.position)}")
    return framing[0]


def _framing(extent: Extent, data: memoryview, at: int, position: int, offset: int) -> tuple[int, int, int] | None:
    """(size, crc, last offset delta) of the batch at `data[at]`, byte `position` of the file, before the extent's end.

    None if `data` ends inside the batch's header.
    Errors as walk.
    """
    end = extent.position + extent.length
    if at + HEADER_BYTES > len(data):
        if end - position < HEADER_BYTES:
            raise UnsoundBatchError("extent ends inside a header", extent, position)
        return None
    length, magic, crc, last_offset_delta = _FRAMING.unpack_from(data, at)
    size = length + LENGTH_PREFIX_BYTES
    if (
        magic != MAGIC
        or size < HEADER_BYTES
        or position + size > end
        or last_offset_delta < 0
        or offset + last_offset_delta > extent.last_offset
    ):
        raise UnsoundBatchError("not a batch of this extent", extent, position)
    return size, crc, last_offset_delta


def _where(extent: Extent, position: int) -> str:
    return (
        f"file={extent.source} position={position} partition_key={extent.partition_key}"
        f" offsets={extent.base_offset}-{extent.last_offset}"
    )


NO_END = 1 << 62
"""An offset behind all others."""


class Batches:
    """Grows extent by extent. `buffers` hold `size_bytes` of complete batches, with `records` offsets."""

    __slots__ = ("buffers", "next", "records", "size_bytes")

    def __init__(self) -> None:
        self.buffers: list[bytes | memoryview] = []
        self.size_bytes = 0
        self.records = 0
        self.next: BatchStart | None = None
        """Where the reader continues; None without batches."""

    def add(
        self,
        extent: Extent,
        body: RangeBytes,
        start: BatchStart,
        *,
        max_bytes: int,
        at_least_one: bool,
        end_offset: int = NO_END,
    ) -> BatchStart:
        """Add the batches from `start` on, where `body` begins, while the result stays within `max_bytes`.

        Batches from `end_offset` on are left out. With `at_least_one` the result's first batch may exceed `max_bytes`.
        Returns where it stopped: also before a damaged batch, which the next read then begins with.
        CorruptError as walk.py if no batch comes before, and then nothing was added.
        """
        buffers: list[bytes | memoryview] = []
        size = self.size_bytes
        records = self.records
        last = None
        try:
            for batch in walk(extent, body, start):
                data = batch.data
                if batch.offset >= end_offset:
                    break
                if size + len(data) > max_bytes and not (at_least_one and size == 0):
                    break
                buffers.append(patched_header(len(data) - LENGTH_PREFIX_BYTES, batch.offset, extent.leader_epoch))
                buffers.append(data[PATCHED_BYTES:])
                size += len(data)
                records += batch.next_offset - batch.offset
                last = batch
        except CorruptError:  # the batches before it are sound, unless the extent ends behind them at a wrong offset
            if last is None or last.next.position >= extent.position + extent.length:
                raise
        self.buffers += buffers
        self.size_bytes = size
        self.records = records
        if last is None:
            return start
        self.next = behind = last.next
        return behind
