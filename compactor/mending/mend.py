"""Give a damaged extent a sound copy in another file, at the same offsets.

Place: `headrace damage`. `headrace damage skip` leaves an object in the bucket for each extent, for people who ask
later which records are lost.

  look     read the extent until it is known what is damaged, and find the sound batches of that (sources.py)
  replace  write a segment file with the sound batches, and for each damaged piece those that were found, or (if the
           caller skips) a batch without records that covers its offsets; the file takes over by the swap of every
           merge, under a job's lease

Invariant: offsets never change, and every batch that is not damaged is in the copy, byte for byte. Nothing is
written for an extent that is sound, that reads give differently, or that the store refuses to give. A damaged piece
is skipped only if the caller says so; the marker of an aborted transaction in it is written again from the
metastore, because consumers would take later records of its producer for aborted. If the process crashes before the
swap, the extent stays as it is, and the cleanup ends the file (compactor/segments.py).
Invariant of what was skipped: written before the swap, and again after it with its outcome: if the process crashes
in between, `begun` is left, and the audit trail says whether the swap was done.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from headrace.compactor.mending.sources import SOURCES_MAX, Stored, Wanted, from_own_bytes, search, stored
from headrace.compactor.merge import MergedFile
from headrace.compactor.take_over import Swapper, Uploads
from headrace.jobs.kinds import MEND_DAMAGE
from headrace.metastore.api.compaction import Swap, SwapInput, SwapOutcome
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import AbortedRange, DataExtent, Extent, ExtentQuery, is_in_file, run_of
from headrace.metastore.api.reports import AuditedFile, PartitionName
from headrace.metastore.transaction_markers import Marker, marker_file_id, render_marker
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError, NotFoundError, UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ObjectStore
from headrace.storage.records.codec import empty_batch
from headrace.storage.segment.damage import Piece
from headrace.storage.segment.damage_reads import Examined, examine, footer_marks
from headrace.storage.segment.format import BODY_START
from headrace.storage.segment.verified import SoundBatch
from headrace.storage.segment.writer import SegmentWriter

LEASE_MS = 600_000
LEASE_ATTEMPTS, LEASE_PAUSE_S = 20, 0.2


class FoundPiece(NamedTuple):
    """A damaged piece, and its sound batches: none if they were not found. `source` says where they are."""

    piece: Piece
    batches: list[Stored]
    source: str = ""


class ExtentLook(NamedTuple):
    """An extent as it was read, and what was found for its damaged pieces."""

    extent: DataExtent
    aborted: Sequence[AbortedRange]
    """The aborted transactions with offsets in it."""
    level: int
    examined: Examined
    found: list[FoundPiece]

    @property
    def lost(self) -> list[FoundPiece]:
        """The pieces for which nothing was found."""
        return [one for one in self.found if not one.batches]


class Mending:
    """Works on one cluster."""

    def __init__(
        self, api: Metastore, store: ObjectStore, commit_shards: int, clock: Clock, rng: random.Random
    ) -> None:
        self._api, self._store, self._clock, self._rng = api, store, clock, rng
        self._shards = commit_shards

    async def look(
        self,
        name: PartitionName,
        partition_key: int,
        offset: int,
        on_searched: Callable[[int, int], None] = lambda done, total: None,
    ) -> ExtentLook:
        """Read the extent with this offset, and search what it has damaged.

        `on_searched` gets the number of files: done, total.
        NotFoundError if the log has no such offset; UnavailableError if reads differ; what the store raises.
        """
        (answer,) = await self._api.index.find_extents([ExtentQuery(partition_key, offset, 1)])
        extent = next((each for each in answer.extents if each.base_offset <= offset <= each.last_offset), None)
        if extent is None or offset < answer.log_start_offset or not is_in_file(extent):
            raise NotFoundError(f"no file has this offset: partition_key={partition_key} offset={offset}")
        (file,) = await self._api.reports.audit_files(uuid.UUID(int=extent.file_id.int - 1), 1)
        examined = await self._examine(extent, file)
        found = [await self._find(name, extent, one, on_searched) for one in _wanted(examined, extent)]
        return ExtentLook(extent, answer.aborted, file.level, examined, found)

    async def replace(self, look: ExtentLook, name: PartitionName, *, skips: bool) -> SwapOutcome:
        """Let a sound copy take over. LOST: the extent was replaced or removed meanwhile.

        InvalidError for an extent that is sound, or has lost pieces unless the caller skips them; errors as a merge's.
        """
        if not look.found:
            raise InvalidError(f"the extent is sound: file={look.extent.file_id} position={look.extent.position}")
        if look.lost and not skips:
            raise InvalidError(f"no sound copy was found: offsets={look.lost[0].piece.base_offset}")
        file = mended_file(look, name)
        token = await self._lease()
        level, born_ms = max(look.level, 1), (await self._api.reports.file_totals()).wall_ms
        stored_file = await Uploads(self._api.segments, self._store, self._rng).store(
            token, file, level=level, born_ms=born_ms
        )
        swapper = Swapper(self._api.compaction, self._shards, self._clock, self._rng)
        outcomes = [one async for _, some in swapper.swap_in(token, stored_file, file.runs) for one in some]
        await self._api.compaction.clear_damage(look.extent.file_id, look.extent.position)
        await self._api.jobs.finish_job(token)
        return outcomes[0]

    async def _examine(self, extent: DataExtent, file: AuditedFile) -> Examined:
        key, run = object_key(extent.file_id), run_of(extent)
        try:
            marks = await footer_marks(self._store, key, file.size, run)
            return await examine(self._store, key, run, marks, self._clock.sleep)
        except NotFoundError as error:  # what the store refuses may be there
            return Examined([Piece(*run, why=str(error))], b"")

    async def _find(
        self, name: PartitionName, extent: DataExtent, wanted: Wanted, on_searched: Callable[[int, int], None]
    ) -> FoundPiece:
        own = from_own_bytes(wanted)
        if own:
            return FoundPiece(wanted.piece, own, "its own bytes: only its framing is damaged")
        first, last = wanted.piece.base_offset, wanted.piece.last_offset
        sources = await self._api.compaction.repair_sources(extent, first, last, SOURCES_MAX)
        for number, source in enumerate(sources, 1):
            found = await search(self._store, wanted, source, name)
            on_searched(number, len(sources))
            if found:
                return FoundPiece(wanted.piece, found, f"file {source.file_id}")
        return FoundPiece(wanted.piece, [])

    async def _lease(self) -> JobToken:
        """Add a job and lease it. One that another run of the command added is given back to it."""
        key = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        await self._api.jobs.enqueue_jobs([MEND_DAMAGE.once(key, max_attempts=1)])
        for _ in range(LEASE_ATTEMPTS):
            job = await self._api.jobs.claim_job("headrace damage", [MEND_DAMAGE.name], LEASE_MS)
            if job is not None and job.key == key:
                return job.token
            if job is not None:
                await self._api.jobs.release_job(job.token)
            await self._clock.sleep(LEASE_PAUSE_S)
        raise UnavailableError(
            f"no lease for the replacement of an extent: other runs have theirs: kind={MEND_DAMAGE.name}"
        )


def mended_file(look: ExtentLook, name: PartitionName) -> MergedFile:
    """The file that takes over: sound batches as they are, found ones in their places, and nothing of what is lost."""
    extent, writer = look.extent, SegmentWriter()
    found = {one.piece.position: one for one in look.found}
    newest, length = -1, 0
    for piece in look.examined.pieces:
        start = piece.position - extent.position
        if not piece.why:
            batches = [look.examined.body[start : start + piece.length]]
        elif found[piece.position].batches:
            batches = [one.data for one in found[piece.position].batches]
        else:
            batches = list(_without_records(piece, extent, look.aborted))
        offset = piece.base_offset
        for batch in batches:
            sound = SoundBatch(memoryview(bytearray(batch)), offset, extent.leader_epoch)
            writer.add(name.topic_id, name.partition_index, extent.partition_key, sound.data, sound.header)
            newest, length = max(newest, sound.header.highest_timestamp), length + len(sound.data)
            offset = sound.last_offset + 1
        if offset != piece.last_offset + 1:
            raise InvalidError(
                f"batches do not cover the offsets: {piece.base_offset}-{piece.last_offset} end={offset}"
            )
    body = writer.finish()
    swap = Swap(
        extent.partition_key,
        extent.base_offset,
        extent.last_offset,
        position=BODY_START,
        length=length,
        leader_epoch=extent.leader_epoch,
        max_timestamp=min(newest, extent.max_timestamp),
        inputs=(SwapInput(extent.last_offset, extent.file_id),),
    )
    return MergedFile(body, length, [[swap]])


def _without_records(piece: Piece, extent: Extent, aborted: Sequence[AbortedRange]) -> Iterator[bytes]:
    """Yield batches without records for the piece's offsets, and the markers of aborted transactions among them."""
    offset = piece.base_offset
    ends = {one.last_offset: one for one in aborted if piece.base_offset <= one.last_offset <= piece.last_offset}
    for end, one in sorted(ends.items()):
        if offset < end:
            yield empty_batch(offset, end - 1, extent.leader_epoch)
        epoch = max(piece.claim.producer_epoch, 0) if piece.claim is not None else 0
        marker = marker_file_id(Marker(one.producer_id, epoch, commits=False))
        yield render_marker(
            extent._replace(base_offset=end, last_offset=end, source=marker, position=extent.max_timestamp)
        )
        offset = end + 1
    if offset <= piece.last_offset:
        yield empty_batch(offset, piece.last_offset, extent.leader_epoch)


def _wanted(examined: Examined, extent: Extent) -> Iterator[Wanted]:
    """Yield the damaged pieces, with their bytes and neighbours."""

    def data(piece: Piece) -> bytes:
        start = piece.position - extent.position
        return examined.body[start : start + piece.length]

    pieces = [None, *examined.pieces, None]
    for before, piece, behind in zip(pieces, pieces[1:], pieces[2:], strict=False):
        if piece is not None and piece.why:
            yield Wanted(piece, data(piece), *(stored(data(each)) if each else None for each in (before, behind)))


PREFIX = "metastore/skipped-damage/"


class LostRange(msgspec.Struct, frozen=True):
    """Damaged offsets, and what their header said: not to be trusted, None if it was not even a header."""

    first_offset: int
    last_offset: int
    why: str
    records: int | None
    producer_id: int | None
    max_timestamp: int | None


class Skipped(msgspec.Struct):
    """One extent that lost records. `outcome`: begun, done, or lost if the extent was replaced or removed meanwhile."""

    topic: str
    topic_id: uuid.UUID
    partition_index: int
    file_id: uuid.UUID
    position: int
    length: int
    wall_ms: int
    ranges: list[LostRange]
    outcome: str = "begun"


def lost_ranges(pieces: Sequence[Piece]) -> list[LostRange]:
    """Return what is lost with damaged pieces."""
    return [
        LostRange(
            piece.base_offset,
            piece.last_offset,
            piece.why,
            piece.claim.record_count if piece.claim else None,
            piece.claim.producer_id if piece.claim else None,
            piece.claim.max_timestamp if piece.claim else None,
        )
        for piece in pieces
    ]


def skipped(topic: str, topic_id: uuid.UUID, partition_index: int, look: ExtentLook, wall_ms: int) -> Skipped:
    """Return the entry of what a replacement leaves out."""
    extent = look.extent
    place = (extent.file_id, extent.position, extent.length)
    ranges = lost_ranges([one.piece for one in look.lost])
    return Skipped(topic, topic_id, partition_index, *place, wall_ms, ranges)


async def write_skipped(store: ObjectStore, entry: Skipped) -> None:
    """Write or overwrite it. What the store raises."""
    key = f"{PREFIX}{entry.file_id}-{entry.position}-{entry.ranges[0].first_offset}.json"
    await store.put(key, msgspec.json.encode(entry))
