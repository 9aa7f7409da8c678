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

from agent.fetch.cache import ChunkCache, Piece
from agent.fetch.metrics import FetchMetrics
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

    def __init__(
        self, store: ObjectStore, cache: ChunkCache, live_end: Callable[[uuid.UUID], int], metrics: FetchMetrics
    ) -> None:
        self._store = store
        self._cache = cache
        self._live_end = live_end
        self._metrics = metrics
        self._historical = asyncio.Semaphore(HISTORICAL_READS)

    async def read(self, slices: Sequence[Slice]) -> list[Piece | HeadraceError]:
        """One result per slice, in order; each slice has `start` < `end`."""
        found = [self._cache.peek(wanted.file_id, wanted.start, wanted.end) for wanted in slices]
        missing: dict[uuid.UUID, list[Slice]] = {}
        for wanted, piece in zip(slices, found, strict=True):
            if piece is None:
                missing.setdefault(wanted.file_id, []).append(wanted)
        misses = sum(map(len, missing.values()))
        self._metrics.cache_hits.inc(len(slices) - misses)
        if not missing:
            return [piece for piece in found if piece is not None]
        self._metrics.cache_misses.inc(misses)
        groups = await asyncio.gather(*(self._read_file(group) for group in missing.values()))
        loaded = {file_id: iter(group) for file_id, group in zip(missing, groups, strict=True)}
        return [
            next(loaded[wanted.file_id]) if piece is None else piece
            for wanted, piece in zip(slices, found, strict=True)
        ]

    async def _read_file(self, group: list[Slice]) -> Sequence[Piece | HeadraceError]:
        """Slices of one file, none of them in the cache."""
        try:
            if any(wanted.recent for wanted in group):
                return await self._through_cache(group)
            async with self._historical:
                return await self._past_cache(group)
        except HeadraceError as error:
            return [error] * len(group)

    async def _through_cache(self, group: list[Slice]) -> list[Piece]:
        live_end = max(self._live_end(group[0].file_id), max(wanted.live_end for wanted in group))
        return await asyncio.gather(*(self._cache.read(s.file_id, s.start, s.end, live_end) for s in group))

    async def _past_cache(self, group: list[Slice]) -> list[Piece]:
        ranges = [ByteRange(wanted.start, wanted.end - wanted.start) for wanted in group]
        bodies = await self._store.get_many(object_key(group[0].file_id), ranges)
        for byte_range, body in zip(ranges, bodies, strict=True):
            if len(body) != byte_range.length:
                raise CorruptError(f"short read: file={group[0].file_id} start={byte_range.start} got={len(body)}")
        return [Piece(memoryview(body), checked=False) for body in bodies]
