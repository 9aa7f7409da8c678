"""Runs jobs of kind "clean-large" on Spark: passes over partitions with more keys than a worker can hold.

    driver      plans the live extents of a partition, cuts them into parts (parts.py)
    executors   read keys; Spark finds superseded records; write extents again (cleaning_tasks.py)
    driver      swaps in the files of all parts under the job's lease, then moves the cleaned offset on

Place: a handler of the driver's job loop (application.py). The local worker's passes (cleaning/job.py) leave the same
records, delete markers and horizons.
Invariant: the driver holds no keys, only reports with ids. It keeps the lease while Spark works; if it is lost,
Spark's work is cancelled and the swaps are refused. The driver reserves ids for the files of each part and attempt
before any task stores something (reserved.py); which segments a file has is known after the rewrite, and started
then, before the swap. A driver that crashes before its swaps leaves reserved ids, which the cleanup ends with their
objects; at mid-swap, extents that are as good as those they replaced: the next driver makes a new pass of what is
live, and the cleaned offset has not moved. If an extent cannot be read, the partition is marked, as by the local
worker.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import msgspec
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as f

from headrace.compactor.cleaning.job import PATIENT_ATTEMPTS, end_of_pass, not_of_the_partition
from headrace.compactor.cleaning.metrics import CleaningMetrics
from headrace.compactor.cleaning.passes import Ending, Pass
from headrace.compactor.cleaning.policy import CleaningTask, decode_cleaning
from headrace.compactor.plan import partition_plan
from headrace.compactor.planner import LAST_LEVEL
from headrace.compactor.spark.cleaning_tasks import (
    PART_ROW,
    REPORT_SCHEMA,
    SCAN_SCHEMA,
    PartReport,
    PassPlan,
    RewriteTask,
    ScanTask,
)
from headrace.compactor.spark.driver import SharedOutTerms, in_group, tasks_at_a_time
from headrace.compactor.spark.parts import split_extents
from headrace.compactor.spark.reserved import attempts_of_a_task, reserve
from headrace.compactor.take_over import start
from headrace.jobs.lease import Lease
from headrace.metastore.api.cleaning import CleanablePartition
from headrace.metastore.api.compaction import NewFile, Swap
from headrace.metastore.api.jobs import Job
from headrace.metastore.api.metastore import Metastore
from headrace.storage.clock import Clock

MOST_DOUBLED = 6


class SparkCleaner:
    """Runs jobs of kind "clean-large", one at a time."""

    scan: type[ScanTask] = ScanTask
    rewrite: type[RewriteTask] = RewriteTask

    def __init__(
        self,
        spark: SparkSession,
        metastore: Metastore,
        terms: SharedOutTerms,
        clock: Clock,
        rng: random.Random,
        metrics: CleaningMetrics,
    ) -> None:
        self._spark, self._metastore, self._terms = spark, metastore, terms
        self._ending = Ending(metastore, metastore.commit_shards, clock, rng, metrics)
        self._clock, self._rng, self._metrics = clock, rng, metrics

    async def handle(self, job: Job, lease: Lease) -> None:
        """Clean the job's partitions. FencedError if the lease is lost; UnavailableError if Spark failed."""
        began = self._clock.monotonic()
        tasks = {wanted.partition_key: wanted for wanted in decode_cleaning(job.payload).tasks}
        made_ms, found = await self._metastore.cleaning.cleanable_extents(
            [(t.partition_key, t.end) for t in tasks.values()]
        )
        for number, partition in enumerate(found, start=1):
            now_ms = made_ms + round((self._clock.monotonic() - began) * 1000)
            plan = self._plan(partition, tasks[partition.live.partition_key], now_ms, job.attempts <= PATIENT_ATTEMPTS)
            plan = await self._reserved(plan, job, lease)
            reports = await in_group(self._spark, lease.token, "clean by key", partial(self._run, plan))
            await self._end(partition, plan, reports, lease)
            lease.progress = f"partitions={number} of={len(found)}"

    def _plan(self, partition: CleanablePartition, wanted: CleaningTask, now_ms: int, is_patient: bool) -> PassPlan:
        plan = partition_plan(partition.live)
        end = end_of_pass(plan, wanted)
        extents = [extent for extent in plan.extents if extent.last_offset < end]
        tasks = tasks_at_a_time(self._spark)
        return PassPlan(
            tuple(
                msgspec.structs.replace(plan, extents=part) for part in split_extents(extents, self._terms.part_bytes)
            ),
            partition.cleaned_offset,
            end,
            partition.high_watermark - 1,
            now_ms,
            self._clock.wall_ms(),
            wanted.delete_retention_ms,
            is_patient,
            self._terms.limits.file_bytes,
            self._terms.limits.max_message_bytes,
            self._terms.bytes_per_s / tasks,
            self._terms.requests_per_s / tasks,
            (),
            partition.aborted,
            partition.log_start_offset,
            self._terms.bucket_id,
        )

    async def _reserved(self, plan: PassPlan, job: Job, lease: Lease) -> PassPlan:
        """Return the parts with ids for twice the files that the parts' bytes are, twice as many in each further
        attempt at the job: a part that is written again is seldom larger.
        """
        sizes = [sum(extent.length for extent in part.extents) for part in plan.parts]
        file_ids = await reserve(
            self._metastore.segments,
            lease.token,
            files=[(1 + size // plan.file_bytes) << min(max(job.attempts, 1), MOST_DOUBLED) for size in sizes],
            attempts=attempts_of_a_task(self._spark),
            born_ms=plan.began_ms,
            level=LAST_LEVEL,
            rng=self._rng,
        )
        return msgspec.structs.replace(plan, file_ids=tuple(file_ids))

    def _run(self, plan: PassPlan) -> list[PartReport]:
        """Run the pass on Spark, which keeps what does not fit into memory on its disks."""
        if not plan.parts:
            return []
        encoded, count = msgspec.json.encode(plan), len(plan.parts)
        scanned: Any = self._spark.range(0, count, 1, count).mapInArrow(
            self.scan(encoded, self._rng.randbytes(16)), SCAN_SCHEMA
        )
        of_a_key = Window.partitionBy("digest")
        newest = f.max(f.when(f.col("is_dirty"), f.col("offset"))).over(of_a_key)
        is_for_part = f.col("digest").isNull() | (f.col("offset") < f.col("newest"))
        lost = scanned.repartition(max(count, tasks_at_a_time(self._spark)), "digest").withColumn("newest", newest)
        of_parts = lost.where(is_for_part).select("part", "offset", "why").repartition(count, "part")
        reports = of_parts.sortWithinPartitions("part", "offset").mapInArrow(self.rewrite(encoded), REPORT_SCHEMA)
        found = [msgspec.json.decode(bytes(row.report), type=PartReport) for row in reports.collect()]
        found.sort(key=lambda report: report.number)
        assert [report.number for report in found] == list(range(count)), f"each part has a row {PART_ROW}"
        return found

    async def _end(
        self, partition: CleanablePartition, plan: PassPlan, reports: list[PartReport], lease: Lease
    ) -> None:
        """Swap in the files that the parts' reports name. The cleaned offset moves on if no part was refused; else the
        partition is left out for a while.
        """
        whole = partition_plan(partition.live)
        key = whole.partition_key
        cleaned = Pass(whole, plan.cleaned_offset, plan.end)
        for report in reports:
            self._count(report)
            cleaned.left += report.left
            cleaned.note_horizon(report.horizon_ms)
            for file, runs in report.files:
                with not_of_the_partition():
                    await self._start(lease, file, runs)
                await self._ending.swap_in(
                    lease.token, file, runs, relied={key: plan.cleaned_offset}, passes={key: cleaned}
                )
        refused = next((report for report in reports if report.why), None)
        if refused is None:
            await self._ending.finish(lease.token, cleaned)
        else:
            await self._ending.give_up(lease.token, partition.live, refused.why or "", refused.damaged)

    async def _start(self, lease: Lease, file: NewFile, runs: list[list[Swap]]) -> None:
        await start(self._metastore.segments, lease.token, file.file_id, file.level, runs, self._rng, is_reserved=True)

    def _count(self, report: PartReport) -> None:
        self._metrics.read_bytes.inc(report.read_bytes)
        self._metrics.written_bytes.inc(report.written_bytes)
        self._metrics.removed(report.superseded, report.expired, report.keyless, report.aborted)
