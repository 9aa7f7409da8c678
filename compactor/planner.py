"""From waiting files to jobs: what one worker does every few seconds, as a job of kind "plan".

Place: in the job loop (runner.py); the policy decides, this asks and enqueues. Large jobs are Spark's
for a time: those that it does not finish, and those that it has no room for, become everybody's here.
What waits for Spark holds up nothing else.
Invariant: it plans under its lease, and files of unfinished jobs are left out. Were two planners at work
for a moment all the same, their jobs might share files: the swap lets one of them win, extent by extent.
If the process dies here, the next planner looks anew.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from dataclasses import replace
from typing import Protocol

from headrace.compactor.compact import KIND as COMPACT
from headrace.compactor.compact import LARGE_KIND
from headrace.compactor.lease import Lease
from headrace.compactor.metrics import CompactionMetrics
from headrace.compactor.plan import CompactionJob, decode_job, encode
from headrace.compactor.policy import LAST_LEVEL, PolicyLimits, choose
from headrace.metastore.compaction import CompactionApi
from headrace.metastore.jobs import Job, JobApi, NewJob

logger = logging.getLogger(__name__)

KIND = "plan"
FILES_PER_LEVEL = 5_000
UNFINISHED_MAX = 64
"""More jobs than this wait already: workers are behind, and plans would be out of date when their turn comes."""
SPARK_ATTEMPTS = 3
"""A large job that was claimed so often and not finished is not Spark's any more."""


class PlannerApi(CompactionApi, JobApi, Protocol):
    """What the planner needs of the metastore."""


class Planner:
    """Handles jobs of kind "plan"."""

    def __init__(self, metastore: PlannerApi, limits: PolicyLimits, metrics: CompactionMetrics) -> None:
        self._metastore, self._limits, self._metrics = metastore, limits, metrics
        self._scan_from = uuid.UUID(int=0)

    async def handle(self, job: Job, lease: Lease) -> None:
        """Enqueue what the policy chooses. FencedError when the lease was lost."""
        await self._hand_over(lease)
        ours, sparks = [
            list(map(decode_job, await self._metastore.unfinished_payloads(kind))) for kind in (COMPACT, LARGE_KIND)
        ]
        if len(ours) >= UNFINISHED_MAX:
            return
        limits = self._limits if len(sparks) < UNFINISHED_MAX else replace(self._limits, large_bytes=0)
        left_alone = sum(len(other.file_ids) for other in sparks)
        waiting = await self._metastore.waiting_files(self._scan_from, FILES_PER_LEVEL + left_alone)
        counted = Counter(file.level for file in waiting.files)
        for level in range(LAST_LEVEL + 1):
            self._metrics.waiting.labels(str(level)).set(counted[level])
        busy = frozenset(file_id for other in ours + sparks for file_id in other.file_ids)
        chosen = choose(waiting.files, busy, limits)
        if chosen:
            await self._metastore.enqueue_jobs([_job(wanted) for wanted in chosen], by=lease.token)
            for wanted in chosen:
                self._metrics.planned.labels(str(wanted.level)).inc()
        self._scan_from = waiting.next_scan

    async def _hand_over(self, lease: Lease) -> None:
        """What Spark did not finish becomes ours: at once if it gets no jobs any more."""
        handed = await self._metastore.hand_over_jobs(
            LARGE_KIND,
            COMPACT,
            after_ms=self._limits.large_wait_ms if self._limits.large_bytes else 0,
            attempts=SPARK_ATTEMPTS,
            by=lease.token,
        )
        if handed:
            logger.warning("large jobs taken back from spark: jobs=%d", handed)
            self._metrics.handed_over.inc(handed)


def _job(wanted: CompactionJob) -> NewJob:
    """Level 1 goes first: it is where rows and files pile up."""
    kind = LARGE_KIND if wanted.is_large else COMPACT
    return NewJob(kind, f"{wanted.level}:{wanted.file_ids[0]}", encode(wanted), priority=1 - wanted.level)
