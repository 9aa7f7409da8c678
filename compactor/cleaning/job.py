"""Runs a job of kind "clean": passes over some partitions, with new files that they share.

    read   the dirty part of a partition, once: the last offset of each key (key_map.py)
    read   all of it from the log start on; extents that lose a record, or get a delete horizon, are written again; the
           record or marker that ended the log when the pass began stays
    store  a file, as a merge does; swap its extents in
    finish when all swaps of a partition were done: its cleaned offset moves on

Place: a handler of the job loop (runner.py); spark/cleaning.py does the same on Spark for partitions with too many
keys, which this worker leaves to it if there is one.
Invariant: a swap names the cleaned offset that its pass relied on. The cleaned offset moves on only if every extent
below it is one that this pass wrote, or read and left. A pass that cannot read an extent ends there: its partition is
marked, and not cleaned for a while. If each read of the extent was altered on its way, nothing is marked: the pass is
planned again. After a crash, swaps that were done stay; the next pass is made of what is live.
Memory: a key map, one file that is being written, and the reads of a partition.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.compactor.cleaning.key_map import KeyMap
from headrace.compactor.cleaning.metrics import CleaningMetrics
from headrace.compactor.cleaning.passes import Ending, Output, Pass, UncleanableError, uncleanable_for
from headrace.compactor.cleaning.policy import CleaningJob, CleaningTask, decode_cleaning, encode_cleaning
from headrace.compactor.cleaning.rewrite import CleaningPass, EndedTransactions, judge, note_keys
from headrace.compactor.merge import GrowingFile, MergeLimits
from headrace.compactor.plan import PartitionPlan, partition_plan
from headrace.compactor.planner import LAST_LEVEL
from headrace.compactor.sources import UNREADABLE, UNREADABLE_AT_LAST, Sources
from headrace.compactor.take_over import Uploads
from headrace.config.settings import Settings
from headrace.jobs.kinds import CLEAN_LARGE
from headrace.jobs.lease import Lease
from headrace.metastore.api.cleaning import CleanablePartition
from headrace.metastore.api.compaction import NewFile, Swap
from headrace.metastore.api.jobs import Job, JobToken, NewJob
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import DataExtent, Extent, is_in_file
from headrace.storage.clock import Clock
from headrace.storage.errors import BadTransferError, HeadraceError, InvalidError, NotFoundError, UnavailableError
from headrace.storage.file_id import level_of
from headrace.storage.objects.store import ObjectStore
from headrace.storage.segment.rereading import VerifiedReads
from headrace.storage.segment.verified import SoundBatch

PATIENT_ATTEMPTS = 6
"""Number of attempts, as in compact.py: how often a job may fail because of unavailable objects."""
TOO_MANY_KEYS = "the keys of one extent exceed log.cleaner.dedupe.buffer.size"
"""Such a partition needs more memory, or Spark (L9)."""


class _ForSparkError(Exception):
    """The key map is full before the end of the dirty part."""


@dataclass(frozen=True, slots=True)
class CleaningTerms:
    """How much a cleaner holds and writes."""

    limits: MergeLimits
    buffer_bytes: int
    """log.cleaner.dedupe.buffer.size."""
    has_spark: bool = False
    """Whether partitions with too many keys are left to Spark."""

    @classmethod
    def of(cls, settings: Settings) -> CleaningTerms:
        """Read log.cleaner.dedupe.buffer.size, compaction.spark.min.bytes and the limits of a merge."""
        has_spark = settings.compaction_spark_min_bytes > 0
        return cls(MergeLimits.of(settings), settings.log_cleaner_dedupe_buffer_size, has_spark)


class Cleaner:
    """Runs jobs of kind "clean"; one instance may run several at a time."""

    def __init__(
        self,
        store: ObjectStore,
        metastore: Metastore,
        commit_shards: int,
        terms: CleaningTerms,
        clock: Clock,
        rng: random.Random,
        metrics: CleaningMetrics,
    ) -> None:
        """`store`: this worker's throttled connection to the bucket."""
        self._store, self._metastore = store, metastore
        self._uploads = Uploads(metastore.segments, store, rng)
        self._ending = Ending(metastore, commit_shards, clock, rng, metrics)
        self._terms = terms
        self._clock, self._rng, self._metrics = clock, rng, metrics

    async def handle(self, job: Job, lease: Lease) -> None:
        """Clean the job's partitions. FencedError if the lease is lost; BadTransferError if each of them had an
        extent that was altered on its way; else as the store.
        """
        began = self._clock.monotonic()
        payload = decode_cleaning(job.payload)
        tasks = {wanted.partition_key: wanted for wanted in payload.tasks}
        made_ms, found = await self._metastore.cleaning.cleanable_extents(
            [(t.partition_key, t.end) for t in tasks.values()]
        )

        def now_ms() -> int:
            return made_ms + round((self._clock.monotonic() - began) * 1000)

        async def take_over(file: GrowingFile) -> None:
            named, runs = await self._store_file(lease.token, file, now_ms())
            await self._ending.swap_in(lease.token, named, runs, output.relied, output.passes)

        output = Output(take_over, self._metrics.judged, self._terms.limits)
        unreadable = UNREADABLE if job.attempts <= PATIENT_ATTEMPTS else UNREADABLE_AT_LAST
        leaves_to_spark = self._terms.has_spark and not payload.is_large
        reads = VerifiedReads(self._store, self._clock, self._rng, self._metrics.altered.inc)
        longest, altered = 0.0, list[BadTransferError]()
        found.sort(key=lambda partition: (partition.live.topic_id.int, partition.live.partition_index))
        for number, partition in enumerate(found, start=1):
            started, wanted = self._clock.monotonic(), tasks[partition.live.partition_key]
            try:
                await self._clean(partition, wanted, reads, output, now_ms, unreadable, leaves_to_spark)
            except UncleanableError as error:
                await self._ending.give_up(lease.token, partition.live, str(error), error.damaged)
            except BadTransferError as error:
                self._ending.leave_for_later(partition.live, error)
                altered.append(error)
            except _ForSparkError:
                await self._leave_to_spark(wanted, lease.token)
            longest = max(longest, self._clock.monotonic() - started)
            lease.progress = f"partitions={number} of={len(found)}"
        await output.store()
        for cleaned in output.passes.values():
            await self._ending.finish(lease.token, cleaned)
        self._metrics.clean_seconds.set(longest)
        if altered and len(altered) == len(found):  # else the planner makes another job for these partitions
            raise altered[-1]

    async def _leave_to_spark(self, wanted: CleaningTask, token: JobToken) -> None:
        self._metrics.ended.labels("spark").inc()
        await self._metastore.jobs.enqueue_jobs([large_job(wanted)], by=token)

    async def _clean(
        self,
        partition: CleanablePartition,
        wanted: CleaningTask,
        reads: VerifiedReads,
        output: Output,
        now_ms: Callable[[], int],
        unreadable: tuple[type[HeadraceError], ...],
        leaves_to_spark: bool,
    ) -> None:
        """One pass: what has to be written is added to `output`. Nothing is noted there if it cannot be complete."""
        plan = partition_plan(partition.live)
        end = end_of_pass(plan, wanted)
        keys, end = await self._keys(partition, plan, end, reads, unreadable, leaves_to_spark)
        began_ms, kept_offset = now_ms(), partition.high_watermark - 1
        rule = CleaningPass(
            keys,
            partition.cleaned_offset,
            kept_offset,
            now_ms=began_ms,
            horizon_ms=began_ms + wanted.delete_retention_ms,
            ended=ended_in(partition),
        )
        extents = [extent for extent in plan.extents if extent.last_offset < end]
        sources = sources_of(reads, extents, self._terms.limits)
        output.begin(Pass(plan, partition.cleaned_offset, end))
        try:
            for extent in extents:
                if not is_in_file(extent):
                    await output.add_marker(extent, rule)
                    continue
                with uncleanable_for(unreadable, extent):
                    batches = await self._read(sources, extent)
                with uncleanable_for(UNREADABLE):
                    judged = await asyncio.to_thread(judge, batches, rule)
                await output.add(extent, batches, judged)
            await output.close_run()
        except BaseException:
            output.abandon()
            raise
        finally:
            await sources.close()

    async def _keys(
        self,
        partition: CleanablePartition,
        plan: PartitionPlan,
        end: int,
        reads: VerifiedReads,
        unreadable: tuple[type[HeadraceError], ...],
        leaves_to_spark: bool,
    ) -> tuple[KeyMap, int]:
        """(the last offset of each key of the dirty part, where the pass ends because the map is full or at `end`)."""
        keys, ended = KeyMap(self._terms.buffer_bytes, self._rng.randbytes(16)), ended_in(partition)
        dirty = [
            extent
            for extent in filter(is_in_file, plan.extents)
            if partition.cleaned_offset <= extent.last_offset < end
        ]
        sources = sources_of(reads, dirty, self._terms.limits)
        try:
            for number, extent in enumerate(dirty):
                if await asyncio.to_thread(lambda: keys.is_full):
                    if leaves_to_spark:
                        raise _ForSparkError
                    return keys, extent.base_offset
                with uncleanable_for(unreadable, extent):
                    batches = await self._read(sources, extent)
                with uncleanable_for(UNREADABLE):
                    await asyncio.to_thread(note_keys, keys, batches, ended)
                if number == 0 and await asyncio.to_thread(lambda: keys.is_exceeded):
                    if leaves_to_spark:
                        raise _ForSparkError
                    raise UncleanableError(f"{TOO_MANY_KEYS}: offset={extent.base_offset} keys={len(keys)}")
            return keys, end
        finally:
            await sources.close()

    async def _read(self, sources: Sources, extent: DataExtent) -> list[SoundBatch]:
        self._metrics.read_bytes.inc(extent.length)
        return await sources.batches(extent)

    async def _store_file(self, token: JobToken, file: GrowingFile, born_ms: int) -> tuple[NewFile, list[list[Swap]]]:
        """Put a complete file."""
        merged = await asyncio.to_thread(file.finish)
        with not_of_the_partition():
            named = await self._uploads.store(token, merged, level=LAST_LEVEL, born_ms=born_ms)
        self._metrics.written_bytes.inc(merged.body_bytes)
        return named, merged.runs


def large_job(wanted: CleaningTask) -> NewJob:
    """The job for Spark over one partition."""
    return CLEAN_LARGE.once(str(wanted.partition_key), encode_cleaning(CleaningJob((wanted,), is_large=True)))


def end_of_pass(plan: PartitionPlan, wanted: CleaningTask) -> int:
    """Return where a pass ends at the latest: before the first extent of level 0, which the planner lets be merged
    first.
    """
    flushed = next((extent for extent in filter(is_in_file, plan.extents) if not level_of(extent.file_id)), None)
    return wanted.end if flushed is None else min(wanted.end, flushed.base_offset)


def ended_in(partition: CleanablePartition) -> EndedTransactions:
    """Return how transactions ended in what a pass reads."""
    return EndedTransactions(partition.aborted, partition.log_start_offset)


def sources_of(reads: VerifiedReads, extents: Sequence[Extent], limits: MergeLimits) -> Sources:
    """Reads of these extents."""
    by_file: dict[uuid.UUID, list[DataExtent]] = defaultdict(list)
    for extent in filter(is_in_file, extents):
        by_file[extent.file_id].append(extent)
    for mine in by_file.values():
        mine.sort(key=lambda extent: extent.position)
    return Sources(reads, by_file, limits.read_bytes)


@contextmanager
def not_of_the_partition() -> Iterator[None]:
    """A file that is refused, or that has no row, says nothing about the partition that is being cleaned."""
    try:
        yield
    except (InvalidError, NotFoundError) as error:
        raise UnavailableError(f"cleaned file refused: error={error}") from error
