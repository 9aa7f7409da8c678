"""The chunk cache: recently written files completely, recently read ones in aligned chunks, and ranges from other
agents.

Place: between read.py and the object store, for readers near the high watermark.
Invariant: a chunk is loaded by one GET for all its readers; its bytes are immutable, so a view stays valid after
eviction. At most `capacity_bytes` are cached (plus the views that readers still hold).
Segment files have different lengths and a GET beyond the end is refused, so the last chunk is loaded only
up to the known end of live bytes (`live_end`), and again, longer, if more becomes known.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict

from headrace.agent.fetch.file_range import FileRange, RangeBytes
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.storage.errors import CorruptError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange, ObjectStore

CHUNK_BYTES = 4 * 1024 * 1024
"""Few GETs for a file of the usual 8 MiB, and one for the small files of a quiet cluster."""

FORGOTTEN_MAX = 1_024
"""Number of missing or corrupt files that are remembered, so that no other agent is asked for them again."""

_WHOLE = -1
_FIRST_RANGE = -2

_Entry = tuple[uuid.UUID, int]
"""File and chunk number; _WHOLE for a file that was put whole; _FIRST_RANGE - n for a byte range from n on."""


class ChunkCache:
    """Limited in bytes; the least recently used entry is evicted first."""

    def __init__(
        self, store: ObjectStore, metrics: FetchMetrics, *, capacity_bytes: int, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._capacity = capacity_bytes
        self._chunk_bytes = chunk_bytes
        self._held = 0
        self._entries: OrderedDict[_Entry, memoryview] = OrderedDict()
        self._loads: dict[_Entry, asyncio.Task[memoryview]] = {}
        self._forgotten: OrderedDict[uuid.UUID, None] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """Bytes of all entries."""
        return self._held

    def put_file(self, file_id: uuid.UUID, data: bytes | memoryview) -> None:
        """Keep a file that this agent has just written, without copying it."""
        self._keep((file_id, _WHOLE), memoryview(data).toreadonly())

    def keep_range(self, file_id: uuid.UUID, start: int, data: memoryview) -> None:
        """Keep bytes from another agent: those from `start` on, within one chunk."""
        self._keep((file_id, _FIRST_RANGE - start), data)

    def split(self, start: int, end: int) -> list[tuple[int, int]]:
        """`start` to `end`, split at chunk boundaries."""
        size = self._chunk_bytes
        return [(chunk * size + first, chunk * size + last) for chunk, first, last in self._chunk_ranges(start, end)]

    def chunk_of(self, position: int) -> int:
        """The number of the chunk that contains the byte."""
        return position // self._chunk_bytes

    def was_forgotten(self, file_id: uuid.UUID) -> bool:
        """Whether the file was found missing or corrupt recently."""
        return file_id in self._forgotten

    def peek(self, file_id: uuid.UUID, start: int, end: int) -> RangeBytes | None:
        """The bytes from `start` to `end` if all of them are cached; no input or output."""
        whole = self._entries.get((file_id, _WHOLE))
        if whole is not None and end <= len(whole):
            self._entries.move_to_end((file_id, _WHOLE))
            return RangeBytes(whole[start:end], checked=True)
        views = []
        for chunk, first, last in self._chunk_ranges(start, end):
            view = self._held_range(file_id, chunk, first, last)
            if view is None:
                return None
            views.append(view)
        return RangeBytes(joined(views), checked=False)

    async def read(self, wanted: FileRange) -> RangeBytes:
        """The range's bytes, loaded if need be; what the store raises."""
        file_id, start, end, live_end, _ = wanted
        body = self.peek(file_id, start, end)
        if body is not None:
            return body
        chunk_ranges = self._chunk_ranges(start, end)
        chunks = await asyncio.gather(
            *(self._chunk((file_id, chunk), last, live_end) for chunk, _, last in chunk_ranges)
        )
        views = [data[first:last] for data, (_, first, last) in zip(chunks, chunk_ranges, strict=True)]
        return RangeBytes(joined(views), checked=False)

    def forget(self, file_id: uuid.UUID) -> None:
        """Drop the cached bytes of a missing or corrupt file."""
        self._forgotten[file_id] = None
        if len(self._forgotten) > FORGOTTEN_MAX:
            self._forgotten.popitem(last=False)
        for entry in [entry for entry in self._entries if entry[0] == file_id]:
            self._held -= len(self._entries.pop(entry))
        self._metrics.cache_bytes.set(self._held)

    async def close(self) -> None:
        """Cancel the loads in progress, also for their readers."""
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    def _chunk_ranges(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """(chunk, first byte in it, byte after the last in it) for each chunk that `start` to `end` touches."""
        size = self._chunk_bytes
        return [
            (chunk, max(start - chunk * size, 0), min(end - chunk * size, size))
            for chunk in range(start // size, (end - 1) // size + 1)
        ]

    def _held_range(self, file_id: uuid.UUID, chunk: int, first: int, last: int) -> memoryview | None:
        """The bytes from `first` to `last` of a chunk, out of the chunk or of a range that starts there."""
        for entry, start in (
            ((file_id, chunk), 0),
            ((file_id, _FIRST_RANGE - chunk * self._chunk_bytes - first), first),
        ):
            data = self._entries.get(entry)
            if data is not None and len(data) >= last - start:
                self._entries.move_to_end(entry)
                return data[first - start : last - start]
        return None

    async def _chunk(self, entry: _Entry, length: int, live_end: int) -> memoryview:
        """At least the first `length` bytes of a chunk."""
        while True:
            data = self._entries.get(entry)
            if data is not None and len(data) >= length:
                return data
            load = self._loads.get(entry)
            # Another reader's load, which may be too short for this reader. A finished load stays listed until its
            # callbacks run; waiting for it here would block them.
            if load is not None and not load.done():
                data = await asyncio.shield(load)
                if len(data) >= length:
                    return data
                continue
            known = min(live_end - entry[1] * self._chunk_bytes, self._chunk_bytes)
            load = asyncio.create_task(self._load(entry, max(length, known)))
            self._loads[entry] = load
            load.add_done_callback(lambda done: self._loaded(entry, done))
            # Shielded: the load continues for the others if this reader's connection closes.
            return await asyncio.shield(load)

    async def _load(self, entry: _Entry, length: int) -> memoryview:
        file_id, chunk = entry
        data = await self._store.get(object_key(file_id), ByteRange(chunk * self._chunk_bytes, length))
        if len(data) != length:
            raise CorruptError(f"short read: file={file_id} chunk={chunk} wanted={length} got={len(data)}")
        self._metrics.read_from_store.inc(length)
        view = memoryview(data)
        self._keep(entry, view)
        return view

    def _loaded(self, entry: _Entry, load: asyncio.Task[memoryview]) -> None:
        if self._loads.get(entry) is load:
            del self._loads[entry]
        if not load.cancelled():
            load.exception()  # each reader raised it; without a reader it is not needed

    def _keep(self, entry: _Entry, data: memoryview) -> None:
        if len(data) > self._capacity:
            return
        replaced = self._entries.pop(entry, None)
        self._held += len(data) - (len(replaced) if replaced is not None else 0)
        self._entries[entry] = data
        while self._held > self._capacity:
            _, evicted = self._entries.popitem(last=False)
            self._held -= len(evicted)
        self._metrics.cache_bytes.set(self._held)


def joined(views: list[memoryview]) -> memoryview:
    """One view; copies only across chunks."""
    return views[0] if len(views) == 1 else memoryview(b"".join(views))
