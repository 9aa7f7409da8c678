"""Finds one batch inside an extent: the one that contains an offset, or the first that is new enough.

Place: before delivery, if a reader starts in the middle of an extent; and in ListOffsets.
Invariant: every skipped batch is validated (walk.py), so a found offset is the real one.
At most `WINDOW_BYTES` of the extent are in memory, or one batch if that is larger.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.agent.fetch.files.damage import Damage
from headrace.agent.fetch.files.read import RangeReader
from headrace.agent.fetch.files.start_points import FileIndex, ResumeHints
from headrace.agent.fetch.files.walk import BatchStart, ExtentBatch, first_size, start_of, walk
from headrace.metastore.api.read import DataExtent, Extent
from headrace.storage.errors import CorruptError, HeadraceError
from headrace.storage.segment.file_range import FileRange

WINDOW_BYTES = 1024 * 1024


class Seeker:
    """Searches extents; remembers its results in `hints`.

    `index` shortens the walk through large extents, `damage` lets it begin behind damaged batches.
    """

    def __init__(self, reader: RangeReader, hints: ResumeHints, index: FileIndex, damage: Damage) -> None:
        self._reader = reader
        self._hints = hints
        self._index = index
        self.damage = damage

    def known_start(self, extent: Extent, offset: int) -> BatchStart | None:
        """The start of the batch that contains `offset`, if it is known without reading.

        The extent's start for any offset before it.
        """
        return start_of(extent) if offset <= extent.base_offset else self._hints.find(extent, offset)

    def remember(self, extent: Extent, start: BatchStart) -> None:
        """Remember that a reader stopped before `start` and will continue there."""
        self._hints.remember(extent, start.offset, start)

    async def find_start(self, extent: DataExtent, offset: int, *, recent: bool) -> BatchStart | HeadraceError:
        """The same by reading; or the error of the read."""
        try:
            near = None if recent else await self._index.before_offset(extent, offset)
            behind = self.damage.floor(extent, offset)
            begin = max(start for start in (start_of(extent), near, behind) if start is not None)
            found = await self.first_batch(extent, lambda b: offset < b.next_offset, begin, recent=recent)
        except HeadraceError as error:
            return error
        if found is None:
            return CorruptError(f"offset not in its extent: offset={offset} extent={extent}")
        start = BatchStart(found.position, found.offset)
        self._hints.remember(extent, offset, start)
        return start

    async def start_before(self, extent: DataExtent, timestamp: int) -> BatchStart:
        """A batch boundary of the extent of which every record before it is older than `timestamp`."""
        near = await self._index.before_timestamp(extent, timestamp)
        return start_of(extent) if near is None else near

    async def first_batch(
        self, extent: DataExtent, wanted: Callable[[ExtentBatch], bool], start: BatchStart, *, recent: bool
    ) -> ExtentBatch | None:
        """The first `wanted` batch of the extent from `start` on; None if there is none.

        Raises what reading raises, and CorruptError as walk.py does.
        """
        end = extent.position + extent.length
        window = WINDOW_BYTES
        while start.position < end:
            stop = min(start.position + window, end)
            (body,) = await self._reader.read([FileRange(extent.file_id, start.position, stop, end, recent)])
            if isinstance(body, HeadraceError):
                raise body
            before = start
            for batch in walk(extent, body, start):
                if wanted(batch):
                    return batch
                start = batch.next
            # A batch larger than the window is read completely in the next round.
            window = max(WINDOW_BYTES, first_size(extent, body, start)) if start == before else WINDOW_BYTES
        return None
