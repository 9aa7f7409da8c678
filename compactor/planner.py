"""Creates jobs for files that wait for compaction: a job of kind "plan", run by one worker every few seconds.

Place: in the job loop (runner.py); the policy decides, this module queries and enqueues. Large jobs are reserved for
Spark for a limited time: jobs that Spark does not finish or has no room for are then open to all workers.
Jobs that wait for Spark do not block others.
Invariant: it plans under its lease, and leaves out files of unfinished jobs, and files that hold what a pass of
cleaning by key reads, or waits to read, except those that are WAIT_FOR_CLEANING_MS old. If two planners run at the same
time for a moment, their jobs may share files: the swap lets one of them win, extent by extent.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain

from headrace.compactor.cleaning.policy import decode_cleaning, ends_of
from headrace.compactor.metrics import CompactionMetrics
from headrace.compactor.plan import CompactionJob, decode_job, encode
from headrace.compactor.policy import LAST_LEVEL, PolicyLimits, choose
from headrace.jobs.kinds import CLEAN, CLEAN_LARGE, CLEAN_NEXT, COMPACT, COMPACT_LARGE
from headrace.jobs.lease import Lease
from headrace.metastore.api.jobs import Job, NewJob
from headrace.metastore.api.metastore import Metastore

logger = logging.getLogger(__name__)

_KINDS = (COMPACT.name, COMPACT_LARGE.name, CLEAN.name, CLEAN_LARGE.name, CLEAN_NEXT.name)
_HOUR_MS = 3_600_000
WAIT_FOR_CLEANING_MS = (_HOUR_MS, 2 * _HOUR_MS, 24 * _HOUR_MS)
"""Longest wait for a cleaning, in ms, by level: files of this age are merged although a partition in them is being
cleaned; swaps let one of both win.
"""
FILES_PER_LEVEL = 5_000
UNFINISHED_MAX = 64
"""Number of waiting jobs above which the workers are behind, and new plans would be out of date when they run."""
SPARK_ATTEMPTS = 3
"""A large job that was claimed this often without being finished is moved from Spark to the workers."""


@dataclass(slots=True)
class ScanPlace:
    """How far the files were looked through, from one run of a worker to its next."""

    next_file: uuid.UUID = field(default=uuid.UUID(int=0))


class Planner:
    """One job of kind "plan". `place` is moved."""

    def __init__(
        self, metastore: Metastore, limits: PolicyLimits, metrics: CompactionMetrics, place: ScanPlace | None = None
    ) -> None:
        self._metastore, self._limits, self._metrics = metastore, limits, metrics
        self._place = place or ScanPlace()

    async def handle(self, job: Job, lease: Lease) -> None:
        """Enqueue the jobs that the policy selects. FencedError if the lease was lost."""
        unfinished = await self._metastore.compaction.unfinished_payloads(*_KINDS)
        if unfinished[_KINDS.index(COMPACT_LARGE.name)]:
            await self._hand_over(lease)
            unfinished = await self._metastore.compaction.unfinished_payloads(*_KINDS)
        ours, sparks = [list(map(decode_job, payloads)) for payloads in unfinished[:2]]
        if len(ours) >= UNFINISHED_MAX:
            return
        limits = self._limits if len(sparks) < UNFINISHED_MAX else replace(self._limits, large_bytes=0)
        cleaned = ends_of(map(decode_cleaning, chain(*unfinished[2:])))
        in_passes = await self._metastore.cleaning.files_of_parts(sorted(cleaned.items())) if cleaned else set()
        left_alone = sum(len(other.file_ids) for other in sparks) + len(in_passes)
        waiting = await self._metastore.compaction.waiting_files(self._place.next_file, FILES_PER_LEVEL + left_alone)
        counted = Counter(file.level for file in waiting.files)
        for level in range(LAST_LEVEL + 1):
            self._metrics.waiting.labels(str(level)).set(counted[level])
        patient = {file.file_id for file in waiting.files if file.age_ms < WAIT_FOR_CLEANING_MS[file.level]}
        busy = {file_id for other in ours + sparks for file_id in other.file_ids} | (in_passes & patient)
        chosen = choose(waiting.files, frozenset(busy), limits)
        if chosen:
            await self._metastore.jobs.enqueue_jobs([_job(wanted) for wanted in chosen], by=lease.token)
            for wanted in chosen:
                self._metrics.planned.labels(str(wanted.level)).inc()
        self._place.next_file = waiting.next_scan

    async def _hand_over(self, lease: Lease) -> None:
        """Move jobs that Spark did not finish to the workers: at once if Spark gets no jobs any more."""
        handed = await self._metastore.jobs.hand_over_jobs(
            COMPACT_LARGE.name,
            COMPACT.name,
            after_ms=self._limits.large_wait_ms if self._limits.large_bytes else 0,
            attempts=SPARK_ATTEMPTS,
            by=lease.token,
        )
        if handed:
            logger.warning("large jobs moved from spark to the workers: jobs=%d", handed)
            self._metrics.handed_over.inc(handed)


def _job(wanted: CompactionJob) -> NewJob:
    """Level 1 has priority, because most rows and files are at level 0."""
    kind = COMPACT_LARGE if wanted.is_large else COMPACT
    return kind.once(f"{wanted.level}:{wanted.file_ids[0]}", encode(wanted), priority=1 - wanted.level)
