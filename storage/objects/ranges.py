"""Byte ranges of one object: check them, join them, and read many of them.

Place: between a reader that needs many small pieces of a file and a store that charges per request.
Invariant: every requested byte is in exactly one of the joined spans, for any order and overlap of the ranges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from headrace.storage.errors import CorruptError, InvalidError
from headrace.storage.objects.store import ByteRange


def check_range(byte_range: ByteRange) -> None:
    """InvalidError for a range that starts before 0 or is empty: a bug of the caller."""
    if byte_range.start < 0 or byte_range.length <= 0:
        raise InvalidError(f"bad byte range: start={byte_range.start} length={byte_range.length}")


def check_inside(key: str, byte_range: ByteRange, size: int) -> None:
    """CorruptError if an object of `size` bytes is too short for the range: the caller expected a longer object."""
    check_range(byte_range)
    if byte_range.start + byte_range.length > size:
        raise CorruptError(
            f"range exceeds the object: key={key} start={byte_range.start} length={byte_range.length} size={size}"
        )


def merge_ranges(ranges: Sequence[ByteRange], gap_bytes: int) -> list[ByteRange]:
    """The fewest spans that cover `ranges` without reading more than `gap_bytes` unneeded bytes in a row.

    In order of start. O(n log n).
    """
    spans: list[ByteRange] = []
    for asked in sorted(ranges, key=lambda r: r.start):
        check_range(asked)
        if spans and asked.start <= spans[-1].start + spans[-1].length + gap_bytes:
            last = spans.pop()
            end = max(last.start + last.length, asked.start + asked.length)
            spans.append(ByteRange(last.start, end - last.start))
        else:
            spans.append(asked)
    return spans


async def read_each(
    get: Callable[[str, ByteRange], Awaitable[bytes]], key: str, ranges: Sequence[ByteRange]
) -> list[bytes]:
    """One `get` per range, in parallel; the first failure cancels the others and is raised."""
    reads = [asyncio.ensure_future(get(key, byte_range)) for byte_range in ranges]
    try:
        return list(await asyncio.gather(*reads))
    finally:
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
