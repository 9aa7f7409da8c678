"""A pass over one partition, as far as it came: the files that it writes, its end in the metastore.

Place: under job.py and spark/cleaning_tasks.py, which read and judge. `Ending` is called by the local worker (job.py)
and by Spark's driver (spark/cleaning.py).
Invariant: an extent of the pass is either written again or left, never both; `Pass.left` names what is live below
its end if all swaps are done. The marker that ends the log is left (docs/decisions/0093). A pass that cannot read a
batch ends there: its complete extents count, the open one does not.
Invariant of the end: each call is fenced by the job's lease. A swap names the cleaned offset that its pass relied
on. The cleaned offset moves on only if all swaps of the pass were done and every extent below it is one that the
pass left.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.compactor.cleaning.metrics import CleaningMetrics
from headrace.compactor.cleaning.rewrite import CleaningPass, CleanRecords, JudgedBatch, marker_batch, marker_horizon_ms
from headrace.compactor.merge import GrowingExtent, GrowingFile, MergeCounts, MergeLimits
from headrace.compactor.plan import PartitionPlan
from headrace.compactor.sources import damaged_extent
from headrace.compactor.take_over import Swapper, record_lost
from headrace.metastore.api.cleaning import CleanedPartition, CleaningApi
from headrace.metastore.api.compaction import DamagedExtent, LivePartition, NewFile, Swap, SwapInput, SwapOutcome
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import DataExtent, Extent
from headrace.storage.clock import Clock
from headrace.storage.errors import (
    BadTransferError,
    FencedError,
    HeadraceError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from headrace.storage.records.compression import Codec
from headrace.storage.segment.verified import SoundBatch

JOINED_BYTES = 256 * 1024
"""An extent that loses nothing, but is at most this large, is written again if the one before it is."""

Keep = Callable[[GrowingFile], Awaitable[None]]


@dataclass(slots=True)
class Pass:
    """A pass over one partition, as far as it came."""

    plan: PartitionPlan
    cleaned_offset: int
    end: int
    left: list[SwapInput] = field(default_factory=list)
    """Extents below `end` that are live if all swaps are done."""
    horizon_ms: int | None = None
    is_lost: bool = False

    def note_swap(self, file: NewFile, swap: Swap, outcome: SwapOutcome) -> None:
        """The outcome of a swap of its extents."""
        if outcome is SwapOutcome.DONE:
            self.left.append(SwapInput(swap.last_offset, file.file_id))
        else:
            self.is_lost = True

    def note_horizon(self, horizon_ms: int | None) -> None:
        """A delete horizon that is left."""
        if horizon_ms is not None:
            self.horizon_ms = horizon_ms if self.horizon_ms is None else min(self.horizon_ms, horizon_ms)


class UncleanableError(Exception):
    """The partition cannot be cleaned now; its text is the reason."""

    def __init__(self, why: str, damaged: DamagedExtent | None = None) -> None:
        """`damaged`: the extent that cannot be read, if that is the reason."""
        super().__init__(why)
        self.damaged = damaged


@contextmanager
def uncleanable_for(kinds: tuple[type[HeadraceError], ...], reading: DataExtent | None = None) -> Iterator[None]:
    """These errors are about the partition, not about the job. `reading`: the extent that is read, if one is.

    A BadTransferError passes: nothing is known of the partition then.
    """
    try:
        yield
    except BadTransferError:
        raise
    except kinds as error:
        damaged = None if reading is None else damaged_extent(reading, error)
        raise UncleanableError(str(error), damaged) from error


class Output:
    """Files, one after the other, of passes one after the other."""

    def __init__(self, keep: Keep, judged: Callable[[JudgedBatch], None], limits: MergeLimits) -> None:
        """`keep` takes each complete file; `judged` each batch, to count it."""
        self.passes: dict[int, Pass] = {}
        """By partition key; only those that read everything."""
        self.relied: dict[int, int] = {}
        """By partition key: the cleaned offset that its swaps rely on."""
        self._keep, self._judged, self._limits = keep, judged, limits
        self._file = GrowingFile()
        self._counts = MergeCounts()

    def begin(self, cleaned: Pass) -> None:
        """Begin a pass: what is added from now on belongs to it."""
        plan, limits = cleaned.plan, self._limits
        codec = None if plan.codec is None else Codec(plan.codec)
        self._rewriter = CleanRecords(codec, limits.batch_bytes, plan.max_message_bytes or limits.max_message_bytes)
        self._run = GrowingExtent(self._file, plan, self._rewriter, limits.extent_bytes)
        self._pass = cleaned
        self.relied[plan.partition_key] = cleaned.cleaned_offset
        self.passes[plan.partition_key] = cleaned

    async def add_marker(self, extent: Extent, rule: CleaningPass) -> None:
        """Leave the marker of a transaction if it must stay; else write an extent without it that covers its offset.

        It must stay if it ends the log, and until its delete horizon, which the pass notes.
        """
        if extent.base_offset == rule.kept_offset:
            await self._leave(extent)
            return
        stays_until_ms = marker_horizon_ms(
            extent,
            cleaned_offset=rule.cleaned_offset,
            now_ms=rule.now_ms,
            delete_retention_ms=rule.horizon_ms - rule.now_ms,
        )
        if stays_until_ms is not None:
            self._pass.note_horizon(stays_until_ms)
            await self._leave(extent)
            return
        batch = marker_batch(extent)
        emptied = JudgedBatch(
            batch, records=[], size_bytes=0, horizon_ms=None, superseded=0, keyless=0, expired=0, aborted=1
        )
        await self.add(extent, [batch], [emptied])

    async def add(self, extent: Extent, batches: list[SoundBatch], judged: Sequence[JudgedBatch]) -> None:
        """Write the extent again, or leave it."""
        for one in judged:
            self._judged(one)
            self._pass.note_horizon(one.horizon_ms if one.is_due else None)
        joins = self._run.takes(extent)
        is_changed = any(one.is_changed for one in judged)
        if not is_changed and not (joins and self._run.is_open and extent.length <= JOINED_BYTES):
            await self._leave(extent)
            return
        if not joins:
            await self.close_run()
        self._rewriter.judged.update((one.batch.offset, one) for one in judged)
        with uncleanable_for((InvalidError,)):
            await asyncio.to_thread(self._run.add, extent, batches, self._counts)

    async def _leave(self, extent: Extent) -> None:
        await self.close_run()
        self._pass.left.append(SwapInput(extent.last_offset, extent.source))

    def abandon(self) -> None:
        """The pass ends here. Its complete extents are swapped in, the one that is open is not; no offset moves on."""
        self.passes.pop(self._pass.plan.partition_key, None)

    async def close_run(self) -> None:
        """Complete the extent that is open, and the file if it is large enough."""
        with uncleanable_for((InvalidError,)):
            await asyncio.to_thread(self._run.close, self._counts)
        if self._file.size >= self._limits.file_bytes:
            await self.store()
            self._run.file = self._file

    async def store(self) -> None:
        """Complete the file that is open."""
        file, self._file = self._file, GrowingFile()
        if file.swaps:
            await self._keep(file)


logger = logging.getLogger(__name__)


class Ending:
    """What a worker tells the metastore about its passes."""

    def __init__(
        self, metastore: Metastore, commit_shards: int, clock: Clock, rng: random.Random, metrics: CleaningMetrics
    ) -> None:
        self._metastore, self._shards = metastore, commit_shards
        self._clock, self._rng, self._metrics = clock, rng, metrics

    async def swap_in(
        self,
        token: JobToken,
        file: NewFile,
        runs: Sequence[Sequence[Swap]],
        relied: Mapping[int, int],
        passes: Mapping[int, Pass],
    ) -> None:
        """Swap the extents of a stored file in, and note the outcomes in the passes that are still complete. By
        partition key: `relied`, the cleaned offset on which a swap relies; `passes`.
        """
        swapper = Swapper(_RelyingSwaps(self._metastore.cleaning, relied), self._shards, self._clock, self._rng)
        try:
            async for some, outcomes in swapper.swap_in(token, file, runs):
                for swap, outcome in zip(some, outcomes, strict=True):
                    if (cleaned := passes.get(swap.partition_key)) is not None:
                        cleaned.note_swap(file, swap, outcome)
        except FencedError:
            await record_lost(self._metastore.segments, token, file)
            raise
        except NotFoundError as error:
            raise UnavailableError(f"cleaned file has no row: error={error}") from error

    async def finish(self, token: JobToken, cleaned: Pass) -> None:
        """Move the cleaned offset on, if nothing of the pass was lost."""
        key = cleaned.plan.partition_key
        result = CleanedPartition(key, cleaned.end, tuple(sorted(cleaned.left)), cleaned.horizon_ms)
        is_done = not cleaned.is_lost and await self._metastore.cleaning.finish_cleaning(token, result)
        self._metrics.ended.labels("done" if is_done else "lost").inc()

    def leave_for_later(self, live: LivePartition, error: HeadraceError) -> None:
        """Mark nothing: the planner plans the partition again."""
        logger.warning(
            "partition not cleaned yet: topic_id=%s partition=%d error=%s", live.topic_id, live.partition_index, error
        )
        self._metrics.ended.labels("altered").inc()

    async def give_up(
        self, token: JobToken, live: LivePartition, why: str, damaged: DamagedExtent | None = None
    ) -> None:
        """Leave the partition out for a while; `damaged`: the extent that cannot be read."""
        logger.error(
            "partition not cleaned: topic_id=%s partition=%d error=%s", live.topic_id, live.partition_index, why
        )
        self._metrics.ended.labels("uncleanable").inc()
        if damaged is not None:
            await self._metastore.compaction.mark_damaged(token, [damaged])
        await self._metastore.cleaning.mark_uncleanable(token, live.partition_key, why)


class _RelyingSwaps:
    """A take_over.SwapApi: each swap names the cleaned offset that its pass relied on."""

    def __init__(self, metastore: CleaningApi, relied: Mapping[int, int]) -> None:
        self._metastore, self._relied = metastore, relied

    async def swap_extents(self, token: JobToken, file: NewFile, swaps: Sequence[Swap]) -> list[SwapOutcome]:
        cleaned = [self._relied[swap.partition_key] for swap in swaps]
        return await self._metastore.swap_cleaned_extents(token, file, swaps, cleaned)
