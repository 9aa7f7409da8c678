"""Runs a job of kind "clean": passes over some partitions, with new files that they share.

    read   the dirty part of a partition, once: the last offset of each key (key_map.py)
    read   all of it from the log start on; extents that lose a record, or get a delete horizon, are written again
    store  a file, as a merge does; swap its extents in
    finish when all swaps of a partition were done: its cleaned offset moves on

Place: a handler of the job loop (runner.py).
Invariant: a swap names the cleaned offset that its pass relied on. The cleaned offset moves on only if every extent
below it is one that this pass wrote, or read and left. A pass that cannot read a batch ends there: its partition is
marked, and not cleaned for a while. After a crash, swaps that were done stay; the next pass is made of what is live.
Memory: a key map, one file that is being written, and the reads of a partition.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from headrace.compactor.cleaning.key_map import KeyMap
from headrace.compactor.cleaning.metrics import CleaningMetrics
from headrace.compactor.cleaning.policy import CleaningTask, decode_cleaning
from headrace.compactor.cleaning.rewrite import CleaningPass, CleanRecords, JudgedBatch, judge, note_keys
from headrace.compactor.lease import Lease
from headrace.compactor.merge import GrowingExtent, GrowingFile, MergeCounts, MergeLimits
from headrace.compactor.plan import PartitionPlan, partition_plan
from headrace.compactor.policy import LAST_LEVEL
from headrace.compactor.sources import UNREADABLE, UNREADABLE_AT_LAST, Sources, StoredBatch
from headrace.compactor.take_over import Swapper, store_merged
from headrace.metastore.api.cleaning import CleanablePartition, CleanedPartition, CleaningApi
from headrace.metastore.api.compaction import NewFile, Swap, SwapInput, SwapOutcome
from headrace.metastore.api.jobs import Job, JobToken
from headrace.metastore.api.read import Extent
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, InvalidError, NotFoundError, UnavailableError
from headrace.storage.file_id import level_of
from headrace.storage.objects.store import ObjectStore
from headrace.storage.records.compression import Codec

logger = logging.getLogger(__name__)

KIND = "clean"
PATIENT_ATTEMPTS = 6
"""As in compact.py: how often a job may fail because of unavailable objects."""
JOINED_BYTES = 256 * 1024
"""An extent that loses nothing, but is at most this large, is written again if the one before it is."""
TOO_MANY_KEYS = "the keys of one extent exceed log.cleaner.dedupe.buffer.size"
"""Such a partition needs more memory, or Spark (L9)."""


@dataclass(slots=True)
class _Pass:
    """A pass over one partition, as far as it came."""

    plan: PartitionPlan
    cleaned_offset: int
    end: int
    left: list[SwapInput] = field(default_factory=list)
    """Extents below `end` that are live if all swaps are done."""
    horizon_ms: int | None = None
    is_lost: bool = False


class _UncleanableError(Exception):
    """The partition cannot be cleaned now; its text is the reason."""


@contextmanager
def _uncleanable_for(kinds: tuple[type[HeadraceError], ...]) -> Iterator[None]:
    """These errors are about the partition, not about the job."""
    try:
        yield
    except kinds as error:
        raise _UncleanableError(str(error)) from error


class Cleaner:
    """Runs jobs of kind "clean"; one instance may run several at a time."""

    def __init__(
        self,
        store: ObjectStore,
        metastore: CleaningApi,
        commit_shards: int,
        limits: MergeLimits,
        buffer_bytes: int,
        clock: Clock,
        rng: random.Random,
        metrics: CleaningMetrics,
    ) -> None:
        """`store` is this worker's throttled connection to the bucket."""
        self._store, self._metastore, self._shards = store, metastore, commit_shards
        self.limits = limits
        self.buffer_bytes = buffer_bytes
        """log.cleaner.dedupe.buffer.size. This and `limits`: of jobs that start from now on."""
        self._clock, self._rng, self._metrics = clock, rng, metrics

    async def handle(self, job: Job, lease: Lease) -> None:
        """Clean the job's partitions. FencedError if the lease is lost; else as the store."""
        began = self._clock.monotonic()
        tasks = {wanted.partition_key: wanted for wanted in decode_cleaning(job.payload).tasks}
        now_ms, found = await self._metastore.cleanable_extents([(t.partition_key, t.end) for t in tasks.values()])
        output = _Output(self, lease, now_ms, began)
        found.sort(key=lambda partition: (partition.live.topic_id.int, partition.live.partition_index))
        output.unreadable = UNREADABLE if job.attempts <= PATIENT_ATTEMPTS else UNREADABLE_AT_LAST
        longest = 0.0
        for number, partition in enumerate(found, start=1):
            started = self._clock.monotonic()
            try:
                await self._clean(partition, tasks[partition.live.partition_key], output)
            except _UncleanableError as error:
                await self._give_up(partition, error, lease.token)
            longest = max(longest, self._clock.monotonic() - started)
            lease.progress = f"partitions={number} of={len(found)}"
        await output.store()
        for cleaned in output.passes.values():
            await self._finish(cleaned, lease.token)
        self._metrics.clean_seconds.set(longest)

    async def _give_up(self, partition: CleanablePartition, error: _UncleanableError, token: JobToken) -> None:
        live = partition.live
        logger.error(
            "partition not cleaned: topic_id=%s partition=%d error=%s", live.topic_id, live.partition_index, error
        )
        self._metrics.ended.labels("uncleanable").inc()
        await self._metastore.mark_uncleanable(token, live.partition_key, str(error))

    async def _finish(self, cleaned: _Pass, token: JobToken) -> None:
        key = cleaned.plan.partition_key
        result = CleanedPartition(key, cleaned.end, tuple(sorted(cleaned.left)), cleaned.horizon_ms)
        is_done = not cleaned.is_lost and await self._metastore.finish_cleaning(token, result)
        self._metrics.ended.labels("done" if is_done else "lost").inc()

    async def _clean(self, partition: CleanablePartition, wanted: CleaningTask, output: _Output) -> None:
        """One pass: what has to be written is added to `output`. Nothing is noted there if it cannot be complete."""
        plan = partition_plan(partition.live)
        flushed = next((extent for extent in plan.extents if not level_of(extent.file_id)), None)
        if flushed is not None:  # the planner lets it be merged first
            wanted = msgspec.structs.replace(wanted, end=min(wanted.end, flushed.base_offset))
        keys, end = await self._keys(plan, partition.cleaned_offset, wanted.end, output.unreadable)
        cleaned = _Pass(plan, partition.cleaned_offset, end)
        now_ms = output.now_ms()
        rule = CleaningPass(keys, partition.cleaned_offset, now_ms, now_ms + wanted.delete_retention_ms)
        extents = [extent for extent in plan.extents if extent.last_offset < end]
        sources = self._sources(extents)
        output.begin(cleaned, self.limits)
        try:
            for extent in extents:
                with _uncleanable_for(output.unreadable):
                    batches = await self._read(sources, extent)
                with _uncleanable_for(UNREADABLE):
                    judged = await asyncio.to_thread(judge, batches, rule)
                await output.add(extent, batches, judged)
            await output.close_run()
        except BaseException:
            output.abandon()
            raise
        finally:
            await sources.close()

    async def _keys(
        self, plan: PartitionPlan, cleaned_offset: int, end: int, unreadable: tuple[type[HeadraceError], ...]
    ) -> tuple[KeyMap, int]:
        """(the last offset of each key of the dirty part, where the pass ends because the map is full or at `end`)."""
        keys = KeyMap(self.buffer_bytes, self._rng.randbytes(16))
        dirty = [extent for extent in plan.extents if cleaned_offset <= extent.last_offset < end]
        sources = self._sources(dirty)
        try:
            for number, extent in enumerate(dirty):
                if await asyncio.to_thread(lambda: keys.is_full):
                    return keys, extent.base_offset
                with _uncleanable_for(unreadable):
                    batches = await self._read(sources, extent)
                with _uncleanable_for(UNREADABLE):
                    await asyncio.to_thread(note_keys, keys, batches)
                if number == 0 and await asyncio.to_thread(lambda: keys.is_exceeded):
                    raise _UncleanableError(f"{TOO_MANY_KEYS}: offset={extent.base_offset} keys={len(keys)}")
            return keys, end
        finally:
            await sources.close()

    def _sources(self, extents: Sequence[Extent]) -> Sources:
        by_file = defaultdict(list)
        for extent in extents:
            by_file[extent.file_id].append(extent)
        for mine in by_file.values():
            mine.sort(key=lambda extent: extent.position)
        return Sources(self._store, by_file, self.limits.read_bytes)

    async def _read(self, sources: Sources, extent: Extent) -> list[StoredBatch]:
        self._metrics.read_bytes.inc(extent.length)
        return await sources.batches(extent)

    async def swap_in(
        self, lease: Lease, named: NewFile, swaps: Sequence[Swap], cleaned_offsets: dict[int, int]
    ) -> list[tuple[Swap, SwapOutcome]]:
        """The outcome of each swap of a stored file."""
        swapper = Swapper(_RelyingSwaps(self._metastore, cleaned_offsets), self._shards, self._clock, self._rng)
        try:
            return [
                outcome
                async for some, outcomes in swapper.swap_in(lease.token, named, swaps)
                for outcome in zip(some, outcomes, strict=True)
            ]
        except NotFoundError as error:
            raise UnavailableError(f"cleaned file has no row: error={error}") from error

    async def store(self, file: GrowingFile, born_ms: int) -> tuple[NewFile, list[Swap]]:
        """Put a complete file."""
        merged = await asyncio.to_thread(file.finish)
        try:
            named = await store_merged(self._store, merged, level=LAST_LEVEL, born_ms=born_ms, rng=self._rng)
        except InvalidError as error:  # not a property of the partition that is being cleaned
            raise UnavailableError(f"cleaned file refused: error={error}") from error
        self._metrics.written_bytes.inc(merged.body_bytes)
        return named, merged.swaps

    @property
    def clock(self) -> Clock:
        """Of this worker."""
        return self._clock

    @property
    def metrics(self) -> CleaningMetrics:
        """Of this process."""
        return self._metrics


class _RelyingSwaps:
    """A take_over.SwapApi: each swap names the cleaned offset that its pass relied on."""

    def __init__(self, metastore: CleaningApi, cleaned_offsets: dict[int, int]) -> None:
        self._metastore, self._cleaned_offsets = metastore, cleaned_offsets

    async def swap_extents(self, token: JobToken, file: NewFile, swaps: Sequence[Swap]) -> list[SwapOutcome]:
        cleaned = [self._cleaned_offsets[swap.partition_key] for swap in swaps]
        return await self._metastore.swap_cleaned_extents(token, file, swaps, cleaned)


class _Output:
    """The files of a job, one after the other."""

    def __init__(self, cleaner: Cleaner, lease: Lease, made_ms: int, began: float) -> None:
        """`made_ms` on the database's clock, when `cleaner`'s clock said `began`."""
        self.passes: dict[int, _Pass] = {}
        """By partition key; only those that read everything."""
        self.unreadable = UNREADABLE
        """Errors of the store that are about one partition."""
        self._cleaner, self._lease = cleaner, lease
        self._made_ms, self._began = made_ms, began
        self._file = GrowingFile()
        self._counts = MergeCounts()
        self._relied: dict[int, int] = {}

    def now_ms(self) -> int:
        """On the database's clock."""
        return self._made_ms + round((self._cleaner.clock.monotonic() - self._began) * 1000)

    def begin(self, cleaned: _Pass, limits: MergeLimits) -> None:
        """What is added from now on is of this partition."""
        plan = cleaned.plan
        codec = None if plan.codec is None else Codec(plan.codec)
        self._rewriter = CleanRecords(codec, limits.batch_bytes, plan.max_message_bytes or limits.max_message_bytes)
        self._run = GrowingExtent(self._file, plan, self._rewriter, limits.extent_bytes)
        self._limits, self._pass = limits, cleaned
        self._relied[plan.partition_key] = cleaned.cleaned_offset
        self.passes[plan.partition_key] = cleaned

    async def add(self, extent: Extent, batches: list[StoredBatch], judged: list[JudgedBatch]) -> None:
        """Write the extent again, or leave it."""
        for one in judged:
            self._cleaner.metrics.judged(one)
        horizons = [one.horizon_ms for one in judged if one.horizon_ms is not None]
        if horizons:
            known = self._pass.horizon_ms
            self._pass.horizon_ms = min(horizons) if known is None else min(known, *horizons)
        joins = self._run.takes(extent, batches)
        is_changed = any(one.is_changed for one in judged)
        if not is_changed and not (joins and self._run.is_open and extent.length <= JOINED_BYTES):
            await self.close_run()
            self._pass.left.append(SwapInput(extent.last_offset, extent.file_id))
            return
        if not joins:
            await self.close_run()
        self._rewriter.judged.update((one.batch.offset, one) for one in judged)
        with _uncleanable_for((InvalidError,)):
            await asyncio.to_thread(self._run.add, extent, batches, self._counts)

    def abandon(self) -> None:
        """The pass ends here. Its complete extents are swapped in, the one that is open is not; no offset moves on."""
        self.passes.pop(self._pass.plan.partition_key, None)

    async def store(self) -> None:
        """Put the file that is open, and swap its extents in."""
        file, self._file = self._file, GrowingFile()
        if not file.swaps:
            return
        named, swaps = await self._cleaner.store(file, self.now_ms())
        for swap, outcome in await self._cleaner.swap_in(self._lease, named, swaps, self._relied):
            cleaned = self.passes.get(swap.partition_key)
            if cleaned is not None and outcome is SwapOutcome.DONE:
                cleaned.left.append(SwapInput(swap.last_offset, named.file_id))
            elif cleaned is not None:
                cleaned.is_lost = True

    async def close_run(self) -> None:
        """Complete the extent that is open, and the file if it is large enough."""
        with _uncleanable_for((InvalidError,)):
            await asyncio.to_thread(self._run.close, self._counts)
        if self._file.size >= self._limits.file_bytes:
            await self.store()
            self._run.file = self._file
