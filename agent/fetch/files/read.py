"""Reads byte ranges of segment files, grouped so that the store gets few, large reads.

Place: between the located extents and the iteration over their batches. ReadTurns is around each read of a
historical range, also of one that is read ahead (read_ahead.py).
Invariant: a result has exactly the requested bytes, or is the error of the read. Readers near
the high watermark use the cache. Historical readers do not fill it: what is loaded ahead for them is in a smaller
cache of replays. They use a part of the store's connections at a time, so that a backfill slows down neither
producers nor readers at the log end: at most `most` historical reads are in progress, and none begins while
`beside_uploads` are and flush files are being uploaded, or were within a second. So a PUT shares connections and
bandwidth with few of them, and replays never stop. Reads begin in the order in which they asked. A read that is in
progress when an upload begins is not stopped: it is short.
Long runs that the store has at once are not kept, and need no connection; all readers together copy one in each turn
of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from headrace.agent.fetch.files.cache import ChunkCache
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.zone_cache.shared import SharedCache
from headrace.storage.errors import CorruptError, HeadraceError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange, ObjectStore
from headrace.storage.segment.file_range import FileRange, RangeBytes

READS_MAX = 16
"""A quarter of s3.max.connections."""
READS_BESIDE_UPLOADS = 4


class ReadTurns:
    """`async with turns:` around a read. `uploading` says whether flush files are being uploaded."""

    def __init__(
        self, uploading: Callable[[], bool], *, most: int = READS_MAX, beside_uploads: int = READS_BESIDE_UPLOADS
    ) -> None:
        self._uploading = uploading
        self._most = most
        self._beside_uploads = beside_uploads
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.running = 0
        """Reads in progress."""

    async def __aenter__(self) -> None:
        if not self._waiting and self.running < self._limit():
            self.running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it got its turn, and was cancelled before it ran
                self._end()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        """A read ended: give its turn on. While any read waits, one is in progress, so this is called again."""
        self.running -= 1
        while self._waiting and self.running < self._limit():
            turn = self._waiting.popleft()
            if not turn.done():
                self.running += 1
                turn.set_result(None)

    def _limit(self) -> int:
        return self._beside_uploads if self._uploading() else self._most


READ_AHEAD_SHARE = 4
"""What one response reads ahead is at most this part of the cache: more would be evicted before it is sent."""

_Groups = dict[uuid.UUID, list[FileRange]]
"""Ranges by their file."""


class RangeReader:
    """Reads byte ranges. `live_end` tells how far a file is known to hold live bytes (ChunkCache).

    `shared` asks the zone's other agents for what is recent; without it everything comes from the store.
    """

    def __init__(
        self,
        store: ObjectStore,
        cache: ChunkCache,
        live_end: Callable[[uuid.UUID], int],
        metrics: FetchMetrics,
        shared: SharedCache | None = None,
        replays: ChunkCache | None = None,
        turns: ReadTurns | None = None,
    ) -> None:
        """`replays`: the cache of what is read ahead for historical readers; None if nothing is."""
        self._store = store
        self.cache = cache
        self._shared = shared
        self._live_end = live_end
        self._metrics = metrics
        self._replays = replays
        self._turns = turns or ReadTurns(lambda: False)
        self._ahead: set[asyncio.Task[None]] = set()
        self._copying = asyncio.Lock()
        """Held for the turn of the event loop in which a range is copied."""

    async def read(self, ranges: Sequence[FileRange]) -> list[RangeBytes | HeadraceError]:
        """One result per range, in order; each has `start` < `end`."""
        found: list[RangeBytes | None] = []
        missing: dict[uuid.UUID, list[FileRange]] = {}
        hits = hit_bytes = 0
        for wanted in ranges:
            file_id, start, end = wanted[:3]
            body = self.cache.peek(file_id, start, end)
            if body is None and self._replays is not None:  # it may be recent now, but not when it was read ahead
                body = self._replays.peek(file_id, start, end)
            if body is not None:
                hits += 1
                hit_bytes += len(body.data)
            elif (body := await self._at_once(wanted)) is None:
                missing.setdefault(file_id, []).append(wanted)
            found.append(body)
        self._metrics.cache_hits.inc(hits)
        self._metrics.read_from_memory.inc(hit_bytes)
        self._metrics.cache_misses.inc(len(ranges) - hits)
        if not missing:
            return [body for body in found if body is not None]
        loaded = {file_id: iter(group) for file_id, group in (await self._read_missing(missing)).items()}
        return [
            next(loaded[wanted.file_id]) if body is None else body for wanted, body in zip(ranges, found, strict=True)
        ]

    def load_ahead(self, wanted: FileRange) -> None:
        """Begin to load a range into the cache where its reader will look, unless it is there."""
        if self.is_coming(wanted):
            return
        self._metrics.read_ahead.inc(wanted.end - wanted.start)
        load = asyncio.create_task(self._load_ahead(wanted))
        self._ahead.add(load)
        load.add_done_callback(self._ahead.discard)

    def forget(self, file_id: uuid.UUID) -> None:
        """Drop what is cached of a missing or corrupt file."""
        for cache in (self.cache, self._replays):
            if cache is not None:
                cache.forget(file_id)

    def is_coming(self, wanted: FileRange) -> bool:
        """Return whether a range is where its reader will look, or is being loaded."""
        return self._are_coming([wanted]) or self.cache.is_coming(wanted)

    async def close(self) -> None:
        """Cancel what is being loaded ahead, and the loads of both caches."""
        loads = list(self._ahead)
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        await self.cache.close()
        if self._replays is not None:
            await self._replays.close()

    async def _load_ahead(self, wanted: FileRange) -> None:
        async with self._turns:
            if wanted.recent:
                await self._near({wanted.file_id: [wanted]})  # its errors are results, which no reader asked for
                return
            with contextlib.suppress(HeadraceError):  # the reader meets it
                assert self._replays is not None
                await self._replays.read(wanted)

    async def _at_once(self, wanted: FileRange) -> RangeBytes | None:
        """A part of a long run, if the store has it in this machine's memory; it is not kept here a second time."""
        if not wanted.run_end:
            return None
        byte_range = ByteRange(wanted.start, wanted.end - wanted.start)
        async with self._copying:
            data = self._store.get_at_once(object_key(wanted.file_id), byte_range)
            if data is None:
                return None
            await asyncio.sleep(0)
        self._metrics.read_from_store.inc(len(data))
        return RangeBytes(data, checked=False)

    async def _read_missing(self, missing: _Groups) -> dict[uuid.UUID, Sequence[RangeBytes | HeadraceError]]:
        """Read what is missing; return for each file a result per range. What is recent of all files is read
        together, so that it can share calls.
        """
        recent = {
            file_id: group
            for file_id, group in missing.items()
            if any(wanted.recent for wanted in group) and not self._are_coming(group)
        }
        historical = [group for file_id, group in missing.items() if file_id not in recent]
        near, far = await asyncio.gather(self._near(recent), asyncio.gather(*map(self._far, historical)))
        return near | {group[0].file_id: bodies for group, bodies in zip(historical, far, strict=True)}

    async def _near(self, groups: _Groups) -> dict[uuid.UUID, Sequence[RangeBytes | HeadraceError]]:
        """Read through the cache of this agent, or of its zone."""
        wider: list[FileRange] = []
        ahead = self.cache.capacity_bytes // READ_AHEAD_SHARE // max(sum(map(len, groups.values())), 1)
        for file_id, group in groups.items():
            live_end = max(self._live_end(file_id), max(wanted.live_end for wanted in group))
            wider += [
                wanted._replace(live_end=live_end, run_end=min(wanted.run_end, max(wanted.end, wanted.start + ahead)))
                for wanted in group
            ]
        if self._shared is not None:
            bodies = iter(await self._shared.read(wider))
        else:
            bodies = iter(await asyncio.gather(*map(self._from_cache, wider)))
        return {file_id: [next(bodies) for _ in group] for file_id, group in groups.items()}

    async def _from_cache(self, wanted: FileRange) -> RangeBytes | HeadraceError:
        try:
            return await self.cache.read(wanted)
        except HeadraceError as error:
            return error

    async def _far(self, group: list[FileRange]) -> Sequence[RangeBytes | HeadraceError]:
        """Historical ranges of one file."""
        try:
            if self._are_coming(group):
                return await self._from_replays(group)
            async with self._turns:
                return await (self._from_replays(group) if self._are_coming(group) else self._past_cache(group))
        except HeadraceError as error:
            return [error] * len(group)

    def _are_coming(self, group: list[FileRange]) -> bool:
        return self._replays is not None and all(map(self._replays.is_coming, group))

    async def _from_replays(self, group: list[FileRange]) -> list[RangeBytes]:
        assert self._replays is not None
        return await asyncio.gather(*map(self._replays.read, group))

    async def _past_cache(self, group: list[FileRange]) -> list[RangeBytes]:
        ranges = [ByteRange(wanted.start, wanted.end - wanted.start) for wanted in group]
        found = await self._store.get_many(object_key(group[0].file_id), ranges)
        for byte_range, body in zip(ranges, found, strict=True):
            if len(body) != byte_range.length:
                raise CorruptError(f"short read: file={group[0].file_id} start={byte_range.start} got={len(body)}")
        self._metrics.read_from_store.inc(sum(map(len, found)))
        return [RangeBytes(memoryview(body), checked=False) for body in found]
