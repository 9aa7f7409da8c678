"""Reads a merge's inputs: few large ranged reads, dead ranges skipped where that is cheaper.

Place: between the plan and the merge's rewriting.
Invariant: only bytes in or near live extents are read, each of them once if they are sound, and at most `read_bytes`
over all files are in memory (or one extent each, if those are larger). An extent that fails its check is read again,
alone, as storage/segment/rereading.py says: what is returned is sound.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence

from headrace.metastore.api.compaction import DamagedExtent, DamageKind
from headrace.metastore.api.read import DataExtent
from headrace.storage.errors import (
    BadTransferError,
    CorruptError,
    DamagedError,
    HeadraceError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange
from headrace.storage.segment.rereading import VerifiedReads
from headrace.storage.segment.verified import SoundBatch

GAP_BYTES = 1024 * 1024
"""A dead range up to this length is read as well: as in storage/objects/merging.py, it costs as much as a request."""
WINDOW_BYTES_MIN = 256 * 1024
WINDOW_BYTES_MAX = 8 * 1024 * 1024
PARALLEL_READS = 8


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

    def __init__(self, reads: VerifiedReads, files: Mapping[uuid.UUID, Sequence[DataExtent]], read_bytes: int) -> None:
        window_bytes = min(max(read_bytes // max(len(files), 1), WINDOW_BYTES_MIN), WINDOW_BYTES_MAX)
        self._verified = reads
        self._windows: dict[tuple[uuid.UUID, int], _Window] = {}
        self._firsts: list[tuple[uuid.UUID, _Window]] = []
        for file_id, extents in files.items():
            windows = _windows(extents, window_bytes)
            self._firsts.append((file_id, windows[0][0]))
            self._windows.update(((file_id, extent.position), window) for window, mine in windows for extent in mine)
        self._places = asyncio.Semaphore(PARALLEL_READS)
        self._reads: set[asyncio.Task[bytes]] = set()

    async def batches(self, extent: DataExtent) -> list[SoundBatch]:
        """The extent's batches in order. DamagedError, BadTransferError, and what the store raises."""
        while self._firsts:  # the first reads of all files start together: most files need no other
            file_id, first = self._firsts.pop()
            self._begin(file_id, first)
        window = self._windows.pop((extent.file_id, extent.position))
        read = self._begin(extent.file_id, window)
        window.left -= 1
        if not window.left:
            window.read = None
        start = extent.position - window.start
        try:
            mine: memoryview | CorruptError = memoryview(await read)[start : start + extent.length]
        except CorruptError as error:
            mine = error
        return await self._verified.batches(extent, leader_epoch=extent.leader_epoch, first=mine)

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
            return await self._verified.store.get(
                object_key(file_id), ByteRange(window.start, window.end - window.start)
            )


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


UNREADABLE: tuple[type[HeadraceError], ...] = (CorruptError, InvalidError)
"""Errors of `batches` for one extent or object: damaged, missing, refused. Other errors may be temporary."""
UNREADABLE_AT_LAST: tuple[type[HeadraceError], ...] = (*UNREADABLE, UnavailableError)
"""The same, after the caller has waited long enough. Throttling is never caused by one object. A BadTransferError is
one of these by its class, and says nothing of the extent: callers look for it first.
"""


def damaged_extent(extent: DataExtent, error: HeadraceError) -> DamagedExtent:
    """The extent that could not be read, for the metastore."""
    assert not isinstance(error, BadTransferError), "nothing is known of the extent"
    kind = DamageKind.REFUSED
    if isinstance(error, DamagedError):
        kind = DamageKind.ALTERED
    elif isinstance(error, NotFoundError):
        kind = DamageKind.MISSING
    return DamagedExtent(
        extent.file_id,
        extent.position,
        extent.length,
        extent.partition_key,
        extent.base_offset,
        extent.last_offset,
        kind,
        str(error),
    )
