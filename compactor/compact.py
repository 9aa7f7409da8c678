"""Runs one compaction job: plan, merge, store, swap, file by file.

Place: the handler of job kind "compact" in the job loop (jobs/runner.py). The metrics here are the planner's, too;
jobs/runner.py counts jobs by result and their duration, storage/objects/measured.py the bucket's requests and bytes.
Invariant: a file's id is reserved and its segments are started before it is stored; its extents are live only after
their swap; each step is fenced by the job's lease. After a crash, the next worker makes a new plan of what is still
live in the inputs and continues; nothing is undone. The cleanup ends what the lost lease started (segments.py).
Extents that are damaged, missing, or refused also in PATIENT_ATTEMPTS leases, do not block others: they stay live
where they are, are marked, and are planned again after a day. Extents that were altered on their way stay, too, and
nothing is marked: the rest is swapped in, then the job fails and is repeated later. So it does if the store serves
nothing at all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.compactor.merge import MergeCounts, MergedFile, MergeLimits, merge
from headrace.compactor.plan import Plan, decode_job, make_plan
from headrace.compactor.take_over import Swapper, Uploads, record_lost
from headrace.jobs.lease import Lease
from headrace.metastore.api.compaction import Swap, SwapOutcome
from headrace.metastore.api.jobs import Job
from headrace.metastore.api.metastore import Metastore
from headrace.storage.clock import Clock
from headrace.storage.cluster_properties import OBJECT_KEY as CLUSTER_PROPERTIES
from headrace.storage.errors import (
    BadTransferError,
    FencedError,
    HeadraceError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from headrace.storage.objects.store import ObjectStore
from headrace.storage.segment.rereading import VerifiedReads


class CompactionMetrics:
    """One set per process with the role compactor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.planned = Counter(
            "headrace_compaction_planned_jobs", "Jobs planned, by level", ["level"], registry=registry
        )
        self.handed_over = Counter(
            "headrace_compaction_handed_over_jobs",
            "Large jobs that Spark did not finish in time, moved to the cluster's workers",
            registry=registry,
        )
        self.waiting = Gauge(
            "headrace_compaction_waiting_files",
            "Live files in the last plan, by level",
            ["level"],
            registry=registry,
        )
        self._bytes_in = Counter(
            "headrace_compaction_read_bytes", "Live bytes that merges planned to read, by output level",
            ["level"], registry=registry,
        )  # fmt: skip
        self._bytes_out = Counter(
            "headrace_compaction_written_bytes", "Bytes of merged files stored, by level", ["level"], registry=registry
        )
        self._files_in = Counter("headrace_compaction_input_files", "Files merged", ["level"], registry=registry)
        self._files_out = Counter("headrace_compaction_output_files", "Files written", ["level"], registry=registry)
        self._batches = Counter(
            "headrace_compaction_batches", "Batches read and written by merges", ["side"], registry=registry
        )
        self._extents = Counter(
            "headrace_compaction_extents",
            "Extents replaced by merges (before), their replacements (after), and lost ones",
            ["side"],
            registry=registry,
        )
        self._kept = Counter(
            "headrace_compaction_kept_batches",
            "Batches that could not be opened and were copied unchanged",
            registry=registry,
        )
        self._unreadable = Counter(
            "headrace_compaction_unreadable_extents", "Extents that could not be read and were not merged",
            registry=registry,
        )  # fmt: skip

        self.altered = Counter(
            "headrace_compaction_altered_reads",
            "Reads of merges that failed their check, and were repeated",
            registry=registry,
        )

    @contextmanager
    def merging(self, plan: Plan, counts: MergeCounts) -> Iterator[None]:
        """Count a merge's inputs, and its counters for every result."""
        level, files = str(plan.level), plan.by_file()
        self._files_in.labels(level).inc(len(files))
        self._bytes_in.labels(level).inc(sum(extent.length for extents in files.values() for extent in extents))
        try:
            yield
        finally:
            self._batches.labels("read").inc(counts.batches_in)
            self._batches.labels("written").inc(counts.batches_out)
            self._kept.inc(counts.kept_as_is)
            self._unreadable.inc(len(counts.damaged))

    def stored(self, level: int, size_bytes: int) -> None:
        """Count a merged file in the bucket."""
        self._files_out.labels(str(level)).inc()
        self._bytes_out.labels(str(level)).inc(size_bytes)

    def swapped(self, swaps: Sequence[Swap], outcomes: Sequence[SwapOutcome]) -> None:
        """Count the outcomes of a swap call."""
        for swap, outcome in zip(swaps, outcomes, strict=True):
            if outcome is SwapOutcome.DONE:
                self._extents.labels("before").inc(len(swap.inputs))
                self._extents.labels("after").inc()
            else:
                self._extents.labels("lost").inc()


PATIENT_ATTEMPTS = 6
"""How often a job may fail because of unavailable objects: one minute including pauses and the store's retries."""


class Compactor:
    """Runs jobs of kind "compact"; one instance may run several at a time."""

    def __init__(
        self,
        store: ObjectStore,
        metastore: Metastore,
        commit_shards: int,
        limits: MergeLimits,
        clock: Clock,
        rng: random.Random,
        metrics: CompactionMetrics,
    ) -> None:
        """`store` is this worker's throttled connection to the bucket."""
        self._store, self._metastore = store, metastore
        self._uploads = Uploads(metastore.segments, store, rng)
        self._swapper = Swapper(metastore.compaction, commit_shards, clock, rng)
        self._limits = limits
        self._clock, self._rng, self._metrics = clock, rng, metrics

    async def handle(self, job: Job, lease: Lease) -> None:
        """Merge the live parts of the job's files. FencedError if the lease is lost; else as the store.

        UnavailableError also for a store that refuses everything: an operator can fix its credentials. BadTransferError
        for extents that were altered in each read, after the rest is done.
        """
        wanted = decode_job(job.payload)
        began = self._clock.monotonic()
        plan = make_plan(wanted.level, await self._metastore.compaction.live_extents(wanted.file_ids))
        counts, files = MergeCounts(), 0
        patient = job.attempts <= PATIENT_ATTEMPTS
        with self._metrics.merging(plan, counts):
            reads = VerifiedReads(self._store, self._clock, self._rng, self._metrics.altered.inc)
            async with aclosing(merge(plan, reads, self._limits, counts, patient=patient)) as merged:
                async for file in merged:
                    born_ms = plan.made_ms + round((self._clock.monotonic() - began) * 1000)
                    await self._take_over(lease, plan.level, born_ms, file)
                    files += 1
                    lease.progress = f"files={files} batches={counts.batches_in}"
                    del file  # its bytes, while the next one is built
        if counts.refused_all:
            await self._require_an_answer()
        await self._metastore.compaction.mark_damaged(lease.token, counts.damaged)
        if counts.altered_extents:
            raise BadTransferError(f"each read of some extents was altered: extents={counts.altered_extents}")

    async def _require_an_answer(self) -> None:
        """UnavailableError unless the store serves the object that every process of the cluster reads first."""
        try:
            await self._store.head(CLUSTER_PROPERTIES)
        except NotFoundError:
            return  # this is an answer as well
        except HeadraceError as error:
            raise UnavailableError(f"store serves nothing: error={error}") from error

    async def _take_over(self, lease: Lease, level: int, born_ms: int, file: MergedFile) -> None:
        """Store a merged file, then swap its extents in."""
        try:
            named = await self._uploads.store(lease.token, file, level=level, born_ms=born_ms)
        except InvalidError as error:  # not final: else the same merge would be planned again at once
            raise UnavailableError(f"merged file refused: error={error}") from error
        self._metrics.stored(level, named.size)
        try:
            async for swaps, outcomes in self._swapper.swap_in(lease.token, named, file.runs):
                self._metrics.swapped(swaps, outcomes)
        except FencedError:
            await record_lost(self._metastore.segments, lease.token, named)
            raise
