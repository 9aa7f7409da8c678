"""Tell damage in the bucket from a bad transfer, and remember which offsets of which extents cannot be read.

Place: asked by deliver.py and timestamps.py after a read failed its check; seek.py enters an extent behind damage.
Invariant: an extent is examined past every cache (storage/segment/damage_reads.py), and a consumer gets CORRUPT_MESSAGE
only for what no repetition changes. What was cached of the file is dropped first: a bad copy is never served twice.
One extent is examined at a time, of at most EXAMINED_BYTES. Damage is looked at again after AGAIN_S: in between a
reader at damage costs no request. Repaired extents have another file, so what is remembered of the old one does not
apply to them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from headrace.agent.fetch.files.read import RangeReader
from headrace.agent.fetch.files.start_points import FileIndex
from headrace.agent.fetch.files.walk import BatchStart
from headrace.agent.fetch.loss_notes import DamageNotes
from headrace.metastore.api.read import DataExtent, Extent, run_of
from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError, DamagedError, UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ObjectStore
from headrace.storage.segment.damage import Piece
from headrace.storage.segment.damage_reads import examine

log = logging.getLogger(__name__)

AGAIN_S = 30.0
"""How long an answer counts. An operator may restore the object."""
EXTENTS_MAX = 1_024
"""Number of damaged extents that are remembered; a further one takes the place of the oldest."""
EXAMINED_BYTES = 256 * 1024 * 1024
"""A larger extent is not examined: its readers get a storage error."""

_ExtentKey = tuple[object, int, int]


class DamagedOffsetsError(DamagedError):
    """These offsets of a partition are damaged in the bucket."""

    def __init__(self, extent: Extent, piece: Piece) -> None:
        super().__init__(
            f"{piece.why}: file={extent.file_id} position={piece.position} length={piece.length}"
            f" partition_key={extent.partition_key} offsets={piece.base_offset}-{piece.last_offset}"
        )
        self.first_offset, self.last_offset = piece.base_offset, piece.last_offset


class _Known(NamedTuple):
    """The damaged pieces of an extent, in order, as of a time of the monotonic clock."""

    pieces: list[Piece]
    at: float


class Damage:
    """What this agent knows of damage. One per agent.

    `notes` gets each extent that was found damaged, with its damaged pieces; None if nothing is recorded.
    """

    def __init__(
        self,
        store: ObjectStore,
        reader: RangeReader,
        index: FileIndex,
        clock: Clock,
        notes: DamageNotes | None = None,
    ) -> None:
        self._store, self._reader, self._index, self._clock, self._notes = store, reader, index, clock, notes
        self._known: OrderedDict[_ExtentKey, _Known] = OrderedDict()
        self._turn = asyncio.Lock()

    def at(self, extent: Extent, offset: int) -> DamagedOffsetsError | None:
        """Return the error of a read at this offset, if it is known; no I/O."""
        if not self._known:  # as nearly always: this is asked for each partition of a fetch
            return None
        piece = self.next(extent, offset)
        return None if piece is None or offset < piece.base_offset else DamagedOffsetsError(extent, piece)

    def next(self, extent: Extent, offset: int) -> Piece | None:
        """Return the first damaged piece with `offset` or later offsets, if it is known; no I/O."""
        return next((piece for piece in self._pieces(extent) if offset <= piece.last_offset), None)

    def floor(self, extent: Extent, offset: int) -> BatchStart | None:
        """Return where to start behind the damage before `offset`; None without any. No I/O."""
        before = [piece for piece in self._pieces(extent) if piece.last_offset < offset]
        return BatchStart(before[-1].end, before[-1].last_offset + 1) if before else None

    async def find(self, extent: DataExtent) -> bool:
        """Read the extent past all caches until it is known whether it is damaged.

        False for sound bytes: then caches or transfers were bad. UnavailableError if the reads differ from each other,
        or another extent is being examined: no reader waits for more than one. And what the store raises.
        """
        if self._turn.locked():
            raise UnavailableError("another extent is being examined")
        async with self._turn:
            if self._pieces(extent):  # another reader found it
                return True
            self._reader.forget(extent.file_id)
            found = await self._found(extent)
            if not found:
                self._known.pop(_key(extent), None)
                return False
            self._known[_key(extent)] = _Known(found, self._clock.monotonic())
            self._known.move_to_end(_key(extent))
            if len(self._known) > EXTENTS_MAX:
                self._known.popitem(last=False)
        for piece in found:
            log.error("damage in the bucket: %s", DamagedOffsetsError(extent, piece))
        if self._notes is not None:
            self._notes.note(extent, found)
        return True

    def _pieces(self, extent: Extent) -> Sequence[Piece]:
        known = self._known.get(_key(extent))
        return known.pieces if known is not None and self._clock.monotonic() < known.at + AGAIN_S else ()

    async def _found(self, extent: DataExtent) -> list[Piece]:
        """Return the damaged pieces; none if a read was sound."""
        if extent.length > EXAMINED_BYTES:
            raise UnavailableError(f"extent too large to be examined: {extent}")
        key, marks = object_key(extent.file_id), await self._index.marks(extent)
        return (await examine(self._store, key, run_of(extent), marks, self._clock.sleep)).damaged


def is_suspect(error: object) -> bool:
    """Return whether an extent should be examined after this error: its bytes were wrong, and may be again."""
    return isinstance(error, CorruptError) and not isinstance(error, DamagedError)


def _key(extent: Extent) -> _ExtentKey:
    return extent.source, extent.position, extent.base_offset
