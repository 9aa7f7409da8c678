"""Finds where to start reading inside a large extent: from the index in its file's footer, or from a hint.

Place: asked by seek.py before it walks an extent. A reader that enters an extent of several MiB in its middle, or
searches a timestamp in it, reads the footer (usually one HEAD and one GET) and one index interval instead of
everything before its record. A ResumeHint is written when a reader got part of an extent, and read when it continues
with the rest.
Invariant: an answer of the index is a batch boundary of the extent with its real offset, at or before the wanted
batch. The footer is covered by its own checksum, and records that are counted by those of their batches. A hint is
valid for exactly the file and extent of its creation, so a compaction swap invalidates it, and so does a new life of
the metastore in which the same file was committed at other offsets. Without a usable footer and without a hint the
extent is walked from its start.
"""

from __future__ import annotations

import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from headrace.agent.fetch.files.walk import BatchStart
from headrace.metastore.api.read import DataExtent, Extent, run_of
from headrace.storage.errors import HeadraceError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ObjectStore
from headrace.storage.segment.damage import BatchMark
from headrace.storage.segment.damage_reads import records_before, run_marks
from headrace.storage.segment.format import PartitionEntry
from headrace.storage.segment.reader import load_footer, start_at_record, start_at_timestamp

_ExtentStart = tuple[uuid.UUID, int, int]
"""File, byte position and base offset: where an extent begins decides the offset of every byte in it."""


class ResumeHints:
    """The `capacity` most recently used hints."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._hints: OrderedDict[tuple[int, int], tuple[_ExtentStart, BatchStart]] = OrderedDict()

    def remember(self, extent: Extent, offset: int, start: BatchStart) -> None:
        """A reader of the extent's partition from `offset` on starts at `start`."""
        key = (extent.partition_key, offset)
        self._hints[key] = (_start_of(extent), start)
        self._hints.move_to_end(key)
        if len(self._hints) > self._capacity:
            self._hints.popitem(last=False)

    def find(self, extent: Extent, offset: int) -> BatchStart | None:
        """Return where to start in `extent`; None if no reader stopped at `offset`."""
        key = (extent.partition_key, offset)
        hint = self._hints.get(key)
        if hint is None:
            return None
        made_for, start = hint
        if made_for != _start_of(extent) or not extent.position <= start.position < extent.position + extent.length:
            return None
        self._hints.move_to_end(key)
        return start


def _start_of(extent: Extent) -> _ExtentStart:
    return extent.source, extent.position, extent.base_offset


log = logging.getLogger(__name__)

WORTHWHILE_BYTES = 2 * 1024 * 1024
"""A smaller extent is walked: that takes no more requests."""
ENTRIES_MAX = 1_024
"""Partitions of files that are remembered."""


class ExtentIndex(NamedTuple):
    """A partition's entry in a footer, and the records of the partition in the file before the extent."""

    entry: PartitionEntry
    records_before: int


class FileIndex:
    """Footers of recently searched files. One per agent."""

    def __init__(self, store: ObjectStore, capacity: int = ENTRIES_MAX) -> None:
        self._store = store
        self._capacity = capacity
        self._found: OrderedDict[tuple[uuid.UUID, int], ExtentIndex | None] = OrderedDict()

    async def before_offset(self, extent: DataExtent, offset: int) -> BatchStart | None:
        """A batch boundary at or before the batch that contains `offset`; None: start at the extent's start."""
        skipped = offset - extent.base_offset
        return await self._start(extent, lambda i: start_at_record(i.entry, i.records_before + skipped))

    async def before_timestamp(self, extent: DataExtent, timestamp: int) -> BatchStart | None:
        """A batch boundary of which every record before it is older than `timestamp`; None as above."""
        return await self._start(extent, lambda i: start_at_timestamp(i.entry, timestamp))

    async def marks(self, extent: DataExtent) -> list[BatchMark]:
        """The batch boundaries inside the extent that the footer names; none without a usable footer."""
        index = await self._index_of(extent)
        if index is None:
            return []
        return run_marks(index.entry, index.records_before, run_of(extent))

    async def _start(self, extent: DataExtent, find: Callable[[ExtentIndex], tuple[int, int]]) -> BatchStart | None:
        if extent.length < WORTHWHILE_BYTES:
            return None
        index = await self._index_of(extent)
        if index is None:
            return None
        records, position = find(index)
        offset = extent.base_offset + records - index.records_before
        if not (extent.position < position < extent.position + extent.length and offset <= extent.last_offset):
            return None
        return BatchStart(position, offset)

    async def _index_of(self, extent: DataExtent) -> ExtentIndex | None:
        key = (extent.file_id, extent.position)
        if key not in self._found:
            try:
                self._found[key] = await self._load(extent)
            except HeadraceError as error:
                log.warning("footer not usable, extent is walked: file=%s error=%s", extent.file_id, error)
                return None
            if len(self._found) > self._capacity:
                self._found.popitem(last=False)
        self._found.move_to_end(key)
        return self._found[key]

    async def _load(self, extent: DataExtent) -> ExtentIndex | None:
        key = object_key(extent.file_id)
        footer = await load_footer(self._store, key, (await self._store.head(key)).size)
        for entry in footer.partitions:
            if entry.position <= extent.position < entry.position + entry.length:
                return ExtentIndex(entry, await records_before(self._store, key, entry, extent.position))
        return None
