"""Find the offsets of batches that have no record: what cleaning by key removed, and control records.

Place: under deliver.py, which tells the owner of the share group, so that no member has to acknowledge them. Pure.
Invariant: only offsets inside a verified batch count, because the batches of a partition tile its offsets; a batch that
cannot be opened has no holes, so its records are left to the client.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.storage.errors import CorruptError, InvalidError
from headrace.storage.records.codec import open_batch
from headrace.storage.records.header import HEADER_BYTES, PATCHED_BYTES, BatchHeader, read_header

OffsetRange = tuple[int, int]
"""First and last offset."""


def headers(
    buffers: Sequence[bytes | memoryview],
) -> Iterator[tuple[BatchHeader, bytes | memoryview, bytes | memoryview]]:
    """Yield (header, first bytes, the other bytes) of each batch of an answer (agent/fetch/files/assemble.py)."""
    for head, rest in zip(buffers[::2], buffers[1::2], strict=True):
        yield read_header(bytes(head) + bytes(rest[: HEADER_BYTES - PATCHED_BYTES])), head, rest


def have_holes(buffers: Sequence[bytes | memoryview]) -> bool:
    """Return whether any batch has an offset without a record."""
    return any(header.is_control or _is_sparse(header) for header, _, _ in headers(buffers))


def find_holes(buffers: Sequence[bytes | memoryview]) -> list[OffsetRange]:
    """Return the offsets without a record, ascending, neighbours as one. Sparse batches are opened."""
    found: list[OffsetRange] = []
    for header, head, rest in headers(buffers):
        for first, last in _holes_of(header, head, rest):
            if found and found[-1][1] + 1 == first:
                first = found.pop()[0]
            found.append((first, last))
    return found


def _holes_of(header: BatchHeader, head: bytes | memoryview, rest: bytes | memoryview) -> Iterator[OffsetRange]:
    next_offset, last = header.base_offset, header.base_offset + header.last_offset_delta
    if not header.is_control and header.record_count:
        if not _is_sparse(header):
            return
        try:
            offsets = [record.offset for record in open_batch(memoryview(b"".join((head, rest))))]
        except (CorruptError, InvalidError):
            return
        for offset in offsets:
            if offset > next_offset:
                yield next_offset, offset - 1
            next_offset = offset + 1
    if next_offset <= last:
        yield next_offset, last


def _is_sparse(header: BatchHeader) -> bool:
    return header.record_count <= header.last_offset_delta
