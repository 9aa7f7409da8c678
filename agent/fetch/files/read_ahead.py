"""Loads what sequential readers will ask for next, in large ranges, while they are busy with what they have.

Place: deliver.py says after each response where its reader continues; the ranges are loaded into the chunk caches of
read.py, where the reader's next fetch finds them, or their load in progress.
A reader is sequential in a partition if it asks for the offset where its last response ended, within RETURN_S. Slower
readers have no use for more than they ask for.
Invariant: what is loaded ahead and not read yet is at most READER_BYTES for the partitions of one fetch, and over all
readers at most the budget of each cache; a reader that finds the budget used up reads without. Nothing more is loaded
for a reader that stops, and what was is forgotten after FORGET_S. Only extents that this agent knows are loaded: no
question to the primary is asked ahead. A load that fails is left to the reader, who meets the error.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.agent.fetch.files.cache import LONG_RUN_BYTES, ChunkCache
from headrace.agent.fetch.files.read import RangeReader
from headrace.agent.fetch.locate import Locator
from headrace.metastore.api.read import DataExtent, Extent, is_in_file
from headrace.storage.clock import Clock
from headrace.storage.objects.merging import GAP_BYTES
from headrace.storage.objects.store import ByteRange, merge_ranges
from headrace.storage.segment.file_range import FileRange

MIB = 1024 * 1024
READER_BYTES = 32 * MIB
"""Two of the largest responses with historical data (deliver.py): one is loaded while the other one is read."""
LEAST_BYTES = MIB // 2
"""A partition with a smaller share of READER_BYTES is not read ahead: its ranges would be as small as its fetches."""
EXTENTS_MAX = 64
"""Extents ahead of one fetch, but at least LEAST_EXTENTS of a partition. In a log of many small files each costs a GET,
which is for nothing if the reader stops.
"""
LEAST_EXTENTS = 2
RETURN_S = 2.0
FORGET_S = 10.0
STREAMS_MAX = 10_000


class ReadTo(NamedTuple):
    """A response had records of a partition from `offset` on; its reader continues at `next_offset`, which is at byte
    `position` of its file unless it begins an extent.
    """

    partition_key: int
    offset: int
    next_offset: int
    position: int


class _Loaded(NamedTuple):
    """A range that was loaded ahead: up to about this offset, so many bytes, into the cache of recent data or not."""

    last_offset: int
    size: int
    recent: bool


class _Stream:
    """One reader of one partition."""

    __slots__ = ("ahead", "at", "end", "file_id", "loaded", "through")

    def __init__(self, now: float) -> None:
        self.at = now
        self.ahead = 0
        """Bytes of `loaded`."""
        self.loaded: deque[_Loaded] = deque()
        """Ranges in order of offset that the reader has not passed."""
        self.through = -1
        """The last offset of the last extent that was loaded completely."""
        self.file_id: uuid.UUID | None = None
        self.end = 0
        """The position up to which the last extent was loaded."""


class ReadAheadSizes(NamedTuple):
    """How much is loaded."""

    chunk_bytes: int
    reader_bytes: int = READER_BYTES
    least_bytes: int = LEAST_BYTES


class ReadAhead:
    """Judges which ranges to load. `find` gives the known extents of (partition key, offset, bytes), and whether
    they are recent, without I/O.

    `load` begins to load a range, unless `is_coming` says that it is loaded, or is being loaded for another reader.
    `budgets`: most bytes that are loaded and not read, by whether they are recent.
    """

    def __init__(
        self,
        find: Callable[[int, int, int], tuple[Sequence[Extent], bool]],
        load: Callable[[FileRange], None],
        is_coming: Callable[[FileRange], bool],
        clock: Clock,
        *,
        budgets: dict[bool, int],
        sizes: ReadAheadSizes,
    ) -> None:
        self._find = find
        self._load = load
        self._is_coming = is_coming
        self._clock = clock
        self._budgets = budgets
        self._sizes = sizes
        self._streams: OrderedDict[tuple[int, int], _Stream] = OrderedDict()
        """By partition key and the offset at which its reader continues; the one that came last is the last."""
        self.unread = {True: 0, False: 0}
        """Bytes loaded ahead and not read, by whether they are recent."""

    def follow(self, progress: Sequence[ReadTo], partitions: int) -> None:
        """Load what the reader of these will need. `partitions`: how many have data for it."""
        now = self._clock.monotonic()
        self._forget(now)
        share = self._sizes.reader_bytes // max(partitions, 1)
        followed: list[tuple[ReadTo, _Stream]] = []
        for one in progress:
            stream = self._streams.pop((one.partition_key, one.offset), None)
            is_sequential = stream is not None and now - stream.at <= RETURN_S
            stream = stream or _Stream(now)
            stream.at = now
            self._pass(stream, one.next_offset)
            if is_sequential and share >= self._sizes.least_bytes:
                followed.append((one, stream))
            if (replaced := self._streams.pop((one.partition_key, one.next_offset), None)) is not None:
                self._drop(replaced)
            self._streams[one.partition_key, one.next_offset] = stream
        # All at once, so that the ranges of several partitions in one file become one.
        if any(stream.ahead * 2 <= share for _, stream in followed):
            most = max(EXTENTS_MAX // partitions, LEAST_EXTENTS)
            wanted = [part for one, stream in followed for part in self._next_ranges(one, stream, share, most)]
            for file_range in joined_ranges(wanted, self._sizes.chunk_bytes):
                self._load(file_range)

    def _pass(self, stream: _Stream, next_offset: int) -> None:
        while stream.loaded and stream.loaded[0].last_offset < next_offset:
            passed = stream.loaded.popleft()
            stream.ahead -= passed.size
            self.unread[passed.recent] -= passed.size

    def _drop(self, stream: _Stream) -> None:
        for loaded in stream.loaded:
            self.unread[loaded.recent] -= loaded.size

    def _forget(self, now: float) -> None:
        """Forget readers that stopped."""
        while self._streams:
            oldest = next(iter(self._streams.values()))
            if oldest.at >= now - FORGET_S and len(self._streams) <= STREAMS_MAX:
                return
            self._streams.popitem(last=False)
            self._drop(oldest)

    def _next_ranges(self, one: ReadTo, stream: _Stream, share: int, most: int) -> list[FileRange]:
        """The ranges to load, so that the share is loaded, or `most` extents are."""
        extents, recent = self._find(one.partition_key, one.next_offset, 2 * share)
        ranges: list[FileRange] = []
        for extent in extents:
            if len(stream.loaded) >= most:
                break
            if not is_in_file(extent) or extent.last_offset <= stream.through:
                continue
            start, end = extent.position, extent.position + extent.length
            if extent.base_offset < one.next_offset and start <= one.position < end:
                start = one.position
            if extent.file_id == stream.file_id and start <= stream.end <= end:
                start = stream.end
            stop = self._stop(extent, start, share - stream.ahead, share)
            if stop <= start or self.unread[recent] + stop - start > self._budgets[recent]:
                break
            is_run = not recent or extent.length >= LONG_RUN_BYTES
            wanted = FileRange(extent.file_id, start, stop, end, recent, stop if is_run else 0)
            if not self._is_coming(wanted):
                ranges.append(wanted)
            self._note(stream, extent, wanted)
            if stop < end:
                break
        return ranges

    def _stop(self, extent: Extent, start: int, room: int, share: int) -> int:
        """Return up to where to load: the end of the extent, if there is room. A longer run than a share is loaded in
        parts that end with a chunk; a shorter one waits until there is room for it.
        """
        end = extent.position + extent.length
        if end - start <= room:
            return end
        if extent.length <= share or room < self._sizes.least_bytes:
            return start
        last_boundary = (start + room) // self._sizes.chunk_bytes * self._sizes.chunk_bytes
        return last_boundary if last_boundary > start else start + room

    def _note(self, stream: _Stream, extent: DataExtent, wanted: FileRange) -> None:
        start, stop = wanted.start, wanted.end
        offsets = extent.last_offset - extent.base_offset + 1
        last_offset = extent.base_offset + (stop - extent.position) * offsets // extent.length - 1
        stream.loaded.append(_Loaded(last_offset, stop - start, wanted.recent))
        stream.ahead += stop - start
        self.unread[wanted.recent] += stop - start
        stream.file_id, stream.end = extent.file_id, stop
        if stop == extent.position + extent.length:
            stream.through = extent.last_offset


def joined_ranges(wanted: Sequence[FileRange], chunk_bytes: int) -> list[FileRange]:
    """The ranges to load, each within one chunk; those that are close to each other are one. Pure.

    What is recent and no long run is loaded by chunks, as its readers do: a part of a chunk would be read again with
    the whole of it, and so more than once per zone.
    """
    by_chunk: dict[tuple[uuid.UUID, int, bool, bool], list[ByteRange]] = defaultdict(list)
    for one in wanted:
        for chunk in range(one.start // chunk_bytes, (one.end - 1) // chunk_bytes + 1):
            start, end = max(one.start, chunk * chunk_bytes), min(one.end, (chunk + 1) * chunk_bytes)
            by_chunk[one.file_id, chunk, one.recent, one.run_end > 0].append(ByteRange(start, end - start))
    return [
        FileRange(file_id, start, end, live_end=end, recent=recent, run_end=end if is_run else 0)
        for (file_id, _, recent, is_run), parts in by_chunk.items()
        for start, end in ((span.start, span.start + span.length) for span in merge_ranges(parts, GAP_BYTES))
    ]


def read_ahead(
    locator: Locator, reader: RangeReader, recent: ChunkCache, replays: ChunkCache, clock: Clock
) -> ReadAhead:
    """Return the read-ahead of these caches: a part of each may hold what no reader has asked for yet."""
    budgets = {True: recent.capacity_bytes // 2, False: replays.capacity_bytes * 2 // 3}
    return ReadAhead(
        locator.known,
        load=reader.load_ahead,
        is_coming=reader.is_coming,
        clock=clock,
        budgets=budgets,
        sizes=ReadAheadSizes(replays.chunk_bytes),
    )
