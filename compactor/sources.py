"""Reads a merge's inputs: few large ranged reads, dead ranges skipped where that is cheaper.

Place: between the plan and the merge's rewriting.
Invariant: only bytes in or near live extents are read, each of them once, and at most `read_bytes` over all files are
in memory (or one extent each, if those are larger). Bytes with a wrong checksum are read again before they count as
damaged, so that a transfer error is not stored permanently.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.metastore.api.read import DataExtent
from headrace.storage.errors import CorruptError, HeadraceError, InvalidError, UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange, ObjectStore
from headrace.storage.records.header import BatchHeader, batch_crc
from headrace.storage.records.patch import patch_offset
from headrace.storage.segment.reader import walk_batches

GAP_BYTES = 1024 * 1024
"""A dead range up to this length is read as well: as in storage/objects/merging.py, it costs as much as a request."""
WINDOW_BYTES_MIN = 256 * 1024
WINDOW_BYTES_MAX = 8 * 1024 * 1024
PARALLEL_READS = 8


class StoredBatch(NamedTuple):
    """A live batch with its real offset and leader epoch. `is_sound`: its checksum is correct."""

    offset: int
    header: BatchHeader
    data: memoryview
    is_sound: bool


class _Window:
    """One read: some extents of one file, close together."""

    __slots__ = ("end", "left", "read", "start")

    def __init__(self, first: DataExtent) -> None:
        self.start = first.position
        self.end = first.position + first.length
        self.left = 1
        """Its extents that were not requested yet."""
        self.read: asyncio.Task[bytes] | None = None


class Sources:
    """The live extents of some files, each requested once."""

    def __init__(self, store: ObjectStore, files: Mapping[uuid.UUID, Sequence[DataExtent]], read_bytes: int) -> None:
        window_bytes = min(max(read_bytes // max(len(files), 1), WINDOW_BYTES_MIN), WINDOW_BYTES_MAX)
        self._store = store
        self._windows: dict[tuple[uuid.UUID, int], _Window] = {}
        self._firsts: list[tuple[uuid.UUID, _Window]] = []
        for file_id, extents in files.items():
            windows = _windows(extents, window_bytes)
            self._firsts.append((file_id, windows[0][0]))
            self._windows.update(((file_id, extent.position), window) for window, mine in windows for extent in mine)
        self._places = asyncio.Semaphore(PARALLEL_READS)
        self._reads: set[asyncio.Task[bytes]] = set()

    async def batches(self, extent: DataExtent) -> list[StoredBatch]:
        """The extent's batches in order. Raises what the store raises, and CorruptError if the bytes do not match."""
        while self._firsts:  # the first reads of all files start together: most files need no other
            file_id, first = self._firsts.pop()
            self._begin(file_id, first)
        window = self._windows.pop((extent.file_id, extent.position))
        read = self._begin(extent.file_id, window)
        window.left -= 1
        if not window.left:
            window.read = None
        body = memoryview(await read)
        start = extent.position - window.start
        batches = await asyncio.to_thread(_open, extent, body[start : start + extent.length])
        if not all(batch.is_sound for batch in batches):
            again = await self._store.get(object_key(extent.file_id), ByteRange(extent.position, extent.length))
            batches = await asyncio.to_thread(_open, extent, memoryview(again))
        return batches

    async def close(self) -> None:
        """Cancel reads that are not awaited."""
        reads = list(self._reads)
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)

    def _begin(self, file_id: uuid.UUID, window: _Window) -> asyncio.Task[bytes]:
        if window.read is None:
            window.read = asyncio.create_task(self._read(file_id, window))
            self._reads.add(window.read)
            window.read.add_done_callback(self._ended)
        return window.read

    def _ended(self, read: asyncio.Task[bytes]) -> None:
        self._reads.discard(read)
        if not read.cancelled():
            read.exception()  # raised to the caller that requests its extents; without one, it is not needed

    async def _read(self, file_id: uuid.UUID, window: _Window) -> bytes:
        async with self._places:
            return await self._store.get(object_key(file_id), ByteRange(window.start, window.end - window.start))


def _windows(extents: Sequence[DataExtent], window_bytes: int) -> list[tuple[_Window, list[DataExtent]]]:
    """Extents, ordered by byte position, grouped by the read that contains them."""
    windows: list[tuple[_Window, list[DataExtent]]] = []
    for extent in extents:
        end = extent.position + extent.length
        if windows:
            last, mine = windows[-1]
            if extent.position - last.end <= GAP_BYTES and end - last.start <= window_bytes:
                last.end = end
                last.left += 1
                mine.append(extent)
                continue
        windows.append((_Window(extent), [extent]))
    return windows


def _open(extent: DataExtent, data: memoryview) -> list[StoredBatch]:
    """Copies. CorruptError unless the bytes are complete batches with exactly the extent's offsets."""
    view = memoryview(bytearray(data))
    offset = extent.base_offset
    batches = []
    for position, header in walk_batches(view):
        batch = view[position : position + header.size]
        is_sound = batch_crc(batch) == header.crc
        patch_offset(batch, offset, extent.leader_epoch)
        patched = BatchHeader(offset, header.batch_length, extent.leader_epoch, *header[3:])
        batches.append(StoredBatch(offset, patched, batch, is_sound))
        offset += header.last_offset_delta + 1
    if offset != extent.last_offset + 1:
        raise CorruptError(f"extent ends at a wrong offset: offset={offset} extent={extent}")
    return batches


UNREADABLE: tuple[type[HeadraceError], ...] = (CorruptError, InvalidError)
"""Errors of `batches` for one extent or object: damaged, missing, refused. Other errors may be temporary."""
UNREADABLE_AT_LAST: tuple[type[HeadraceError], ...] = (*UNREADABLE, UnavailableError)
"""The same, after the caller has waited long enough. Throttling is never caused by one object."""
