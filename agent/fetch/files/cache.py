"""The chunk cache: recently written files completely, recently read ones in aligned chunks, and ranges: of long runs
of one partition, and from other agents.

Place: between read.py and the object store, for readers near the high watermark.
Invariant: a chunk is loaded by one GET for all its readers; its bytes are immutable, so a view stays valid after
eviction. At most `capacity_bytes` are cached (plus the views that readers still hold).
A chunk serves many partitions with little in it. Where one partition fills a good part of it, the others' readers may
be far away, and the chunk be evicted before they come: such runs are loaded by themselves.
Segment files have different lengths and a GET beyond the end is refused, so the last chunk is loaded only
up to the known end of live bytes (`live_end`), and again, longer, if more becomes known.
"""

from __future__ import annotations

import asyncio
import uuid
from bisect import bisect_right, insort
from collections import OrderedDict

from headrace.agent.fetch.metrics import FetchMetrics
from headrace.storage.errors import CorruptError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange, ObjectStore
from headrace.storage.segment.file_range import FileRange, RangeBytes

CHUNK_BYTES = 4 * 1024 * 1024
"""Few GETs for a file of the usual 8 MiB, and one for the small files of a quiet cluster."""

LONG_RUN_BYTES = 512 * 1024
"""Length from which on an extent is loaded without what is around it: a GET for each costs less than
the bytes of a chunk that are not needed here, and may be evicted before others come for them.
"""

FORGOTTEN_MAX = 1_024
"""Number of missing or corrupt files that are remembered, so that no other agent is asked for them again."""

_WHOLE = -1
_FIRST_RANGE = -2

_Entry = tuple[uuid.UUID, int]
"""File and chunk number; _WHOLE for a file that was put whole; _FIRST_RANGE - n for a byte range from n on, within one
chunk."""


class ChunkCache:
    """Limited in bytes; the least recently used entry is evicted first."""

    def __init__(
        self,
        store: ObjectStore,
        metrics: FetchMetrics,
        *,
        capacity_bytes: int,
        chunk_bytes: int = CHUNK_BYTES,
        is_counted: bool = True,
    ) -> None:
        """`is_counted`: its bytes are those of the metric."""
        self._is_counted = is_counted
        self._store = store
        self._metrics = metrics
        self.capacity_bytes = capacity_bytes
        self.chunk_bytes = self._chunk_bytes = chunk_bytes
        self._held = 0
        self._entries: OrderedDict[_Entry, memoryview] = OrderedDict()
        self._range_starts: dict[uuid.UUID, list[int]] = {}
        """Of the byte ranges among the entries, in order."""
        self._loads: dict[_Entry, asyncio.Task[memoryview]] = {}
        self._loading: dict[uuid.UUID, dict[_Entry, tuple[int, int]]] = {}
        """The byte ranges of the loads, by file."""
        self._forgotten: OrderedDict[uuid.UUID, None] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """Bytes of all entries."""
        return self._held

    def put_file(self, file_id: uuid.UUID, data: bytes | memoryview) -> None:
        """Keep a file that this agent has just written, without copying it."""
        self._keep((file_id, _WHOLE), memoryview(data).toreadonly())

    def whole(self, file_id: uuid.UUID) -> memoryview | None:
        """The file, if this agent has written it and still has it."""
        return self._entries.get((file_id, _WHOLE))

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
        """Return whether the file was found missing or corrupt recently."""
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

    def is_coming(self, wanted: FileRange) -> bool:
        """Return whether each part of the range is cached, or of a chunk or run that is being loaded."""
        file_id, start, end = wanted[:3]
        return all(
            self._held_range(file_id, chunk, first, last) is not None
            or self._load_of(file_id, chunk, first, last) is not None
            for chunk, first, last in self._chunk_ranges(start, end)
        )

    async def read(self, wanted: FileRange) -> RangeBytes:
        """The range's bytes, loaded if need be; what the store raises."""
        file_id, start, end, live_end, _, run_end = wanted
        body = self.peek(file_id, start, end)
        if body is not None:
            return body
        if run_end:
            loads = [self._run_part(file_id, *part, run_end) for part in self._chunk_ranges(start, end)]
        else:
            loads = [self._chunk_part(file_id, *part, live_end) for part in self._chunk_ranges(start, end)]
        return RangeBytes(joined(await asyncio.gather(*loads)), checked=False)

    def forget(self, file_id: uuid.UUID) -> None:
        """Drop the cached bytes of a missing or corrupt file."""
        self._forgotten[file_id] = None
        if len(self._forgotten) > FORGOTTEN_MAX:
            self._forgotten.popitem(last=False)
        for entry in [entry for entry in self._entries if entry[0] == file_id]:
            self._drop(entry)
        self._show()

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
        """The bytes from `first` to `last` of a chunk, out of the chunk or of a range that contains them."""
        data = self._entries.get((file_id, chunk))
        if data is not None and len(data) >= last:
            self._entries.move_to_end((file_id, chunk))
            return data[first:last]
        first, last = chunk * self._chunk_bytes + first, chunk * self._chunk_bytes + last
        starts = self._range_starts.get(file_id, ())
        for start in reversed(starts[: bisect_right(starts, first)]):
            data = self._entries[file_id, _FIRST_RANGE - start]
            if start + len(data) >= last:
                self._entries.move_to_end((file_id, _FIRST_RANGE - start))
                return data[first - start : last - start]
        return None

    async def _chunk_part(self, file_id: uuid.UUID, chunk: int, first: int, last: int, live_end: int) -> memoryview:
        """The bytes from `first` to `last` of a chunk, which is loaded as far as it is known to be live."""
        start = chunk * self._chunk_bytes
        data = await self._shared_load((file_id, chunk), start, last, min(live_end - start, self._chunk_bytes))
        return data[first:last]

    async def _run_part(self, file_id: uuid.UUID, chunk: int, first: int, last: int, run_end: int) -> memoryview:
        """The same of a run: from `first` on, as far as run and chunk go. Another load may have brought it."""
        held = self._held_range(file_id, chunk, first, last)
        if held is not None:
            return held
        load = self._load_of(file_id, chunk, first, last)
        if load is not None:
            start, task = load
            return (await asyncio.shield(task))[first - start : last - start]
        start = chunk * self._chunk_bytes + first
        ahead = min(run_end - start, self._chunk_bytes - first)
        return (await self._shared_load((file_id, _FIRST_RANGE - start), start, last - first, ahead))[: last - first]

    def _load_of(
        self, file_id: uuid.UUID, chunk: int, first: int, last: int
    ) -> tuple[int, asyncio.Task[memoryview]] | None:
        """A load in progress of the bytes from `first` to `last` of a chunk, and where in the chunk it begins."""
        begin = chunk * self._chunk_bytes
        for entry, (start, end) in self._loading.get(file_id, {}).items():
            if start <= begin + first and begin + last <= end and not self._loads[entry].done():
                return start - begin, self._loads[entry]
        return None

    async def _shared_load(self, entry: _Entry, start: int, length: int, known: int) -> memoryview:
        """Load at least `length` bytes from `start` on; the first to ask loads `known` bytes, if
        that is more.
        """
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
            load = asyncio.create_task(self._load(entry, start, max(length, known)))
            self._loads[entry] = load
            self._loading.setdefault(entry[0], {})[entry] = (start, start + max(length, known))
            load.add_done_callback(lambda done: self._loaded(entry, done))
            # Shielded: the load continues for the others if this reader's connection closes.
            return await asyncio.shield(load)

    async def _load(self, entry: _Entry, start: int, length: int) -> memoryview:
        file_id = entry[0]
        data = await self._store.get(object_key(file_id), ByteRange(start, length))
        if len(data) != length:
            raise CorruptError(f"short read: file={file_id} start={start} wanted={length} got={len(data)}")
        self._metrics.read_from_store.inc(length)
        view = memoryview(data)
        self._keep(entry, view)
        return view

    def _loaded(self, entry: _Entry, load: asyncio.Task[memoryview]) -> None:
        if self._loads.get(entry) is load:
            del self._loads[entry]
            del self._loading[entry[0]][entry]
            if not self._loading[entry[0]]:
                del self._loading[entry[0]]
        if not load.cancelled():
            load.exception()  # each reader raised it; without a reader it is not needed

    def _keep(self, entry: _Entry, data: memoryview) -> None:
        if len(data) > self.capacity_bytes:
            return
        if entry in self._entries:
            self._drop(entry)
        self._entries[entry] = data
        self._held += len(data)
        file_id, number = entry
        if number <= _FIRST_RANGE:
            insort(self._range_starts.setdefault(file_id, []), _FIRST_RANGE - number)
        while self._held > self.capacity_bytes:
            self._drop(next(iter(self._entries)))
        self._show()

    def _show(self) -> None:
        if self._is_counted:
            self._metrics.cache_bytes.set(self._held)

    def _drop(self, entry: _Entry) -> None:
        self._held -= len(self._entries.pop(entry))
        file_id, number = entry
        if number <= _FIRST_RANGE:
            starts = self._range_starts[file_id]
            starts.remove(_FIRST_RANGE - number)
            if not starts:
                del self._range_starts[file_id]


def joined(views: list[memoryview]) -> memoryview:
    """One view; copies only across chunks."""
    return views[0] if len(views) == 1 else memoryview(b"".join(views))
