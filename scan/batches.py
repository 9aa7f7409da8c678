"""Iterates over the batches of an extent's bytes, with their real offsets, each checked.

Place: under every reader of scan/. Pure.
Invariant: a yielded batch is complete, has a correct checksum and is inside the extent; the batches tile the extent's
offsets. Records inside a batch may leave gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.storage.errors import CorruptError
from headrace.storage.records.header import BatchHeader, batch_crc
from headrace.storage.segment.reader import walk_batches


class LocatedBatch(NamedTuple):
    """A batch as stored; `offset` is its real base offset, the header's is the producer's or the merge's."""

    offset: int
    header: BatchHeader
    data: memoryview


def walk_extent(
    data: memoryview, base_offset: int, last_offset: int, start: int = 0, end: int | None = None
) -> Iterator[LocatedBatch]:
    """The batches with an offset in [start, end); all of them if `end` is None. CorruptError if the bytes do not match.

    Checksums of batches outside are not checked.
    """
    offset = base_offset
    for position, header in walk_batches(data):
        next_offset = offset + header.last_offset_delta + 1
        if next_offset > start and (end is None or offset < end):
            batch = data[position : position + header.size]
            if batch_crc(batch) != header.crc:
                raise CorruptError(f"batch checksum mismatch: offsets={offset}-{next_offset - 1}")
            yield LocatedBatch(offset, header, batch)
        offset = next_offset
    if offset != last_offset + 1:
        raise CorruptError(f"extent ends at a wrong offset: offset={offset} expected={last_offset + 1}")
