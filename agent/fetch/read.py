"""Byte ranges of segment files, grouped so that the store sees few, large reads.

Place: between the extents that were located and the walk over their batches.
Invariant: a result has exactly the bytes asked for, or is the error that kept them away. Readers near
the high watermark go through the cache; historical readers neither fill it nor take more than
`HISTORICAL_READS` of the store's connections at a time, so that a backfill slows no tail reader.
If the process dies here clients repeat their fetch.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from agent.fetch import metrics
from agent.fetch.cache import ChunkCache, Piece
from storage.errors import CorruptError, HeadraceError
from storage.file_id import object_key
from storage.objects.store import ByteRange, ObjectStore

HISTORICAL_READS = 16
"""Files that historical readers of one agent read at a time."""


class Slice(NamedTuple):
    """The bytes from `start` to `end` of a file."""

    file_id: uuid.UUID
    start: int
    end: int
    live_end: int
    """The end of the extent: who reads on will want these bytes too."""
    recent: bool
    """Near the high watermark: worth caching."""


class SliceReader:
    """Reads slices. `live_end` tells how far a file is known to hold live bytes (ChunkCache)."""

    def __init__(self, store: ObjectStore, cache: ChunkCache, live_end: Callable[[uuid.UUID], int]) -> None:
        self._store = store
        self._cache = cache
        self._live_end = live_end
        self._historical = asyncio.Semaphore(HISTORICAL_READS)

    async def read(self, slices: Sequence[Slice]) -> list[Piece | HeadraceError]:
        """One result per slice, in order; each slice has `start` < `end`."""
        results: dict[Slice, Piece | HeadraceError] = {}
        missing: dict[uuid.UUID, list[Slice]] = {}
        for wanted in dict.fromkeys(slices):
            piece = self._cache.peek(wanted.file_id, wanted.start, wanted.end)
            metrics.CACHE_READS.labels("miss" if piece is None else "hit").inc()
            if piece is not None:
                results[wanted] = piece
            else:
                missing.setdefault(wanted.file_id, []).append(wanted)
        if missing:
            for found in await asyncio.gather(*(self._read_file(group) for group in missing.values())):
                results.update(found)
        return [results[wanted] for wanted in slices]

    async def _read_file(self, group: list[Slice]) -> dict[Slice, Piece | HeadraceError]:
        """Slices of one file, none of them in the cache."""
        try:
            if any(wanted.recent for wanted in group):
                return await self._through_cache(group)
            async with self._historical:
                return await self._past_cache(group)
        except HeadraceError as error:
            return dict.fromkeys(group, error)

    async def _through_cache(self, group: list[Slice]) -> dict[Slice, Piece | HeadraceError]:
        live_end = max(self._live_end(group[0].file_id), max(wanted.live_end for wanted in group))
        pieces = await asyncio.gather(*(self._cache.read(s.file_id, s.start, s.end, live_end) for s in group))
        return dict(zip(group, pieces, strict=True))

    async def _past_cache(self, group: list[Slice]) -> dict[Slice, Piece | HeadraceError]:
        ranges = [ByteRange(wanted.start, wanted.end - wanted.start) for wanted in group]
        found: dict[Slice, Piece | HeadraceError] = {}
        bodies = await self._store.get_many(object_key(group[0].file_id), ranges)
        for wanted, body in zip(group, bodies, strict=True):
            if len(body) != wanted.end - wanted.start:
                raise CorruptError(f"short read: file={wanted.file_id} start={wanted.start} got={len(body)}")
            found[wanted] = Piece(memoryview(body), checked=False)
        return found
