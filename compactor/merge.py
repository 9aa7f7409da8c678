"""Merges a plan's live extents into new segment files, in the local worker and in Spark.

Place: between the plan and the swap. Reads through sources.py, rewrites through rewrite.py, lays out
through storage/segment/writer.py.
Invariant: only verified batches are written (storage/segment/verified.py). Output files and segments are those of
plan.py, but for extents that cannot be read, around which a segment is split. Partitions are in the order of a
segment file; a new extent replaces complete old extents. An extent that is damaged, or altered in each read, stays
where it is, live; a batch that cannot be opened is copied. These are counted and logged, and do not affect their
neighbours.
Memory: one file being written, twice while it is joined, `read_bytes` of the inputs, and the batches that a rewriter
has open: nothing here refers to a file that the caller has, and a caller drops it before the next one.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.compactor.plan import INPUTS_PER_SEGMENT, PartitionPlan, Plan, joins, outputs
from headrace.compactor.rewrite import BATCH_BYTES, CopyBatches, MergeRecords, Rewriter, WrittenBatch
from headrace.compactor.sources import UNREADABLE, UNREADABLE_AT_LAST, Sources, damaged_extent
from headrace.config.settings import Settings
from headrace.metastore.api.compaction import DamagedExtent, Swap, SwapInput
from headrace.metastore.api.read import DataExtent, Extent, is_in_file
from headrace.storage.errors import BadTransferError, CorruptError, HeadraceError, NotFoundError, UnavailableError
from headrace.storage.records.compression import Codec
from headrace.storage.segment.format import BODY_START
from headrace.storage.segment.rereading import VerifiedReads
from headrace.storage.segment.verified import SoundBatch
from headrace.storage.segment.writer import SegmentWriter

logger = logging.getLogger(__name__)

COMPLAINTS_MAX = 20
"""Maximum number of log lines about damage per merge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeLimits:
    """Limits of a merge, in bytes. A file's inputs exceed its limit only by the last one; an extent or a batch exceeds
    its limit only if a single input does.
    """

    file_bytes: int = 64 * 1024 * 1024
    extent_bytes: int = 8 * 1024 * 1024
    """A reader that starts in the middle of an extent iterates from the extent's first batch."""
    batch_bytes: int = BATCH_BYTES
    """Maximum size of a merged batch; the topic's max.message.bytes if that is less."""
    max_message_bytes: int = 1_048_588
    """max.message.bytes of a topic that does not set it: the cluster's message.max.bytes."""
    read_bytes: int = 64 * 1024 * 1024

    @classmethod
    def of(cls, settings: Settings) -> MergeLimits:
        """Read compaction.file.bytes and message.max.bytes."""
        return cls(file_bytes=settings.compaction_file_bytes, max_message_bytes=settings.message_max_bytes)


@dataclass(slots=True)
class MergeCounts:
    """Counters of a merge, updated while it runs."""

    batches_in: int = 0
    batches_out: int = 0
    kept_as_is: int = 0
    """Batches that should have been opened or merged, but could not be."""
    damaged: list[DamagedExtent] = field(default_factory=list)
    """Extents that stay where they are, because they are damaged, missing or refused."""
    altered_extents: int = 0
    """Extents that stay where they are, because each read of them was altered on its way: to be merged later."""
    extents_read: int = 0
    lost_files: dict[uuid.UUID, HeadraceError] = field(default_factory=dict)
    """Files that the store does not serve, with the reason. Each is requested once."""
    complaints: int = 0

    @property
    def refused_all(self) -> bool:
        """Whether no extent was served, and not because all are missing or damaged: the store may be the cause."""
        errors = self.lost_files.values()
        return not self.extents_read and any(not isinstance(error, NotFoundError) for error in errors)

    def complain(self, event: str, *fields: object) -> None:
        """Log damaged data; only the first cases, because one lost file would name every partition."""
        self.complaints += 1
        if self.complaints <= COMPLAINTS_MAX:
            logger.error(event, *fields)
        elif self.complaints == COMPLAINTS_MAX + 1:
            logger.error("further damage in this merge is only counted")


class MergedFile(NamedTuple):
    """A complete segment file that is not stored yet, and the extents it replaces, in file order."""

    body: bytes
    body_bytes: int
    runs: list[list[Swap]]
    """The swaps of each of its segments."""
    number: int = 0
    """The number of the output in its plan: an output of which nothing can be read makes no file."""

    @property
    def swaps(self) -> list[Swap]:
        """The swaps of all segments."""
        return [swap for run in self.runs for swap in run]


async def merge(
    plan: Plan, reads: VerifiedReads, limits: MergeLimits, counts: MergeCounts, *, patient: bool = True
) -> AsyncGenerator[MergedFile, None]:
    """New files one after the other; a file is not used here any more when the next is requested. Close it when done.

    Raises what the store raises, except for inputs that are missing, damaged, refused or altered. `patient`:
    UnavailableError of a single object is raised too, and so it is if every read was refused; otherwise such inputs are
    skipped as well.
    """
    sources = Sources(reads, plan.by_file(), limits.read_bytes)
    leave_for = UNREADABLE if patient else UNREADABLE_AT_LAST
    try:
        for number, output in enumerate(outputs(plan, limits.file_bytes, limits.extent_bytes)):
            file = GrowingFile()
            for segment in output.partitions:
                file.begin_segment()
                run = GrowingExtent(file, segment, _rewriter(plan.level, segment, limits), limits.extent_bytes)
                for extent in filter(is_in_file, segment.extents):  # a plan of files has no markers
                    batches = await _read(sources, segment, extent, counts, leave_for)
                    if batches is None or not run.takes(extent):
                        await asyncio.to_thread(run.close, counts)
                    if batches is not None:
                        await asyncio.to_thread(run.add, extent, batches, counts)
                await asyncio.to_thread(run.close, counts)
            if file.swaps:
                yield (await asyncio.to_thread(file.finish))._replace(number=number)
        if patient and counts.refused_all:
            raise UnavailableError(f"store refused every read: files={len(counts.lost_files)}")
    finally:
        await sources.close()


class GrowingFile:
    """A file that is being built, also by cleaning (cleaning/job.py)."""

    def __init__(self) -> None:
        self.swaps: list[Swap] = []
        self._writer = SegmentWriter()
        self._segments: list[list[Swap]] = []
        self._begins = True
        self._inputs = 0

    @property
    def size(self) -> int:
        """Its size so far, without footer."""
        return self._writer.body_end

    def add(self, partition: PartitionPlan, written: WrittenBatch) -> None:
        header, data = written
        self._writer.add(partition.topic_id, partition.partition_index, partition.partition_key, data, header)

    def begin_segment(self) -> None:
        """Begin a segment: what is added from now on is in it."""
        self._begins = True

    def complete(self, swap: Swap) -> None:
        """A new extent is complete. It begins a segment if that was asked for, or does not continue the last."""
        last = self.swaps[-1] if self.swaps else None
        if (
            last is None
            or self._begins
            or not _continues(last, swap)
            or self._inputs + len(swap.inputs) > INPUTS_PER_SEGMENT
        ):
            self._segments.append([])
            self._inputs = 0
        self._begins = False
        self._inputs += len(swap.inputs)
        self._segments[-1].append(swap)
        self.swaps.append(swap)

    def finish(self) -> MergedFile:
        """Return the file's bytes; drop what was collected for them. Nothing can be added any more."""
        size, writer, self._writer = self.size, self._writer, SegmentWriter()
        return MergedFile(writer.finish(), size - BODY_START, self._segments)


class GrowingExtent:
    """Collects old extents of one partition for one new extent, repeatedly."""

    def __init__(self, file: GrowingFile, partition: PartitionPlan, rewriter: Rewriter, extent_bytes: int) -> None:
        self.file = file
        self._partition, self._rewriter, self._extent_bytes = partition, rewriter, extent_bytes
        self._inputs: list[Extent] = []
        self._start = 0
        self._max_timestamp = 0

    def takes(self, extent: Extent) -> bool:
        """Return whether the extent may join the collected ones."""
        if not self._inputs:
            return True
        if extent.base_offset == self._partition.roll_offset or not joins(self._inputs, extent):
            return False
        return extent.length <= self._room

    @property
    def is_open(self) -> bool:
        """Whether a new extent was started."""
        return bool(self._inputs)

    def add(self, extent: Extent, batches: list[SoundBatch], counts: MergeCounts) -> None:
        if not self._inputs:
            self._start = self.file.size
            self._max_timestamp = -(2**63)
        self._inputs.append(extent)
        self._rewriter.growth_left = max(self._room - extent.length, 0)
        counts.batches_in += len(batches)
        for batch in batches:
            self._write(self._rewriter.add(batch), counts)

    def close(self, counts: MergeCounts) -> None:
        """Finish the new extent, if one was started."""
        if not self._inputs:
            return
        self._write(self._rewriter.flush(), counts)
        inputs, self._inputs = self._inputs, []
        self.file.complete(
            Swap(
                self._partition.partition_key,
                inputs[0].base_offset,
                inputs[-1].last_offset,
                self._start,
                self.file.size - self._start,
                inputs[0].leader_epoch,
                # A header may give a later time than its records have, and rewriting shows that. The value is never
                # raised: look-ups by time rely on the values in the commit.
                min(self._max_timestamp, max(extent.max_timestamp for extent in inputs)),
                tuple(SwapInput(extent.last_offset, extent.source) for extent in inputs),
            )
        )

    @property
    def _room(self) -> int:
        """Bytes that the new extent can still accept, if all waiting batches are written unchanged."""
        return self._extent_bytes - (self.file.size - self._start) - self._rewriter.waiting_bytes

    def _write(self, batches: Iterable[WrittenBatch], counts: MergeCounts) -> None:
        for written in batches:
            self.file.add(self._partition, written)
            self._max_timestamp = max(self._max_timestamp, written[0].highest_timestamp)
            counts.batches_out += 1
        for kept in self._rewriter.kept:
            counts.kept_as_is += 1
            counts.complain(
                "batch not rewritten: topic_id=%s partition=%d offsets=%d-%d file=%s error=%s",
                self._partition.topic_id,
                self._partition.partition_index,
                kept.base_offset,
                kept.last_offset,
                next(e.source for e in self._inputs if kept.base_offset <= e.last_offset),
                kept.why,
            )
        self._rewriter.kept.clear()


def _continues(last: Swap, swap: Swap) -> bool:
    return (last.partition_key, last.leader_epoch) == (
        swap.partition_key,
        swap.leader_epoch,
    ) and swap.base_offset == last.last_offset + 1


def _rewriter(level: int, partition: PartitionPlan, limits: MergeLimits) -> Rewriter:
    if level < 2:
        return CopyBatches()
    codec = None if partition.codec is None else Codec(partition.codec)
    return MergeRecords(codec, limits.batch_bytes, partition.max_message_bytes or limits.max_message_bytes)


async def _read(
    sources: Sources,
    partition: PartitionPlan,
    extent: DataExtent,
    counts: MergeCounts,
    leave_for: tuple[type[HeadraceError], ...],
) -> list[SoundBatch] | None:
    """The extent's batches; None, with a log line, if they are altered, or cannot be read for one of these reasons."""
    error = counts.lost_files.get(extent.file_id)
    if error is None:
        try:
            batches = await sources.batches(extent)
            counts.extents_read += 1
            return batches
        except (CorruptError, BadTransferError) as wrong:
            error = wrong
        except leave_for as refusal:
            error = counts.lost_files[extent.file_id] = refusal
    counts.complain(
        "extent not merged: topic_id=%s partition=%d offsets=%d-%d file=%s position=%d bytes=%d error=%s",
        partition.topic_id,
        partition.partition_index,
        extent.base_offset,
        extent.last_offset,
        extent.file_id,
        extent.position,
        extent.length,
        error,
    )
    if isinstance(error, BadTransferError):
        counts.altered_extents += 1
    else:
        counts.damaged.append(damaged_extent(extent, error))
    return None
