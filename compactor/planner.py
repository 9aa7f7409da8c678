"""From waiting files to jobs: what one worker does every few seconds, as a job of kind "plan".

Place: in the job loop (runner.py); the policy decides, this asks and enqueues.
Invariant: it plans under its lease, and files of unfinished jobs are left out. Were two planners at work
for a moment all the same, their jobs might share files: the swap lets one of them win, extent by extent.
If the process dies here, the next planner looks anew.
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Protocol

from compactor.compact import KIND as COMPACT
from compactor.compact import LARGE_KIND
from compactor.lease import Lease
from compactor.metrics import CompactionMetrics
from compactor.plan import CompactionJob, decode_job, encode
from compactor.policy import LAST_LEVEL, PolicyLimits, choose
from metastore.compaction import CompactionApi
from metastore.jobs import Job, JobApi, NewJob

KIND = "plan"
FILES_PER_LEVEL = 5_000
UNFINISHED_MAX = 64
"""More jobs than this wait already: workers are behind, and plans would be out of date when their turn comes."""


class PlannerApi(CompactionApi, JobApi, Protocol):
    """What the planner needs of the metastore."""


class Planner:
    """Handles jobs of kind "plan"."""

    def __init__(self, metastore: PlannerApi, limits: PolicyLimits, metrics: CompactionMetrics) -> None:
        self._metastore, self._limits, self._metrics = metastore, limits, metrics
        self._scan_from = uuid.UUID(int=0)

    async def handle(self, job: Job, lease: Lease) -> None:
        """Enqueue what the policy chooses. FencedError when the lease was lost."""
        unfinished = [
            decode_job(payload)
            for kind in (COMPACT, LARGE_KIND)
            for payload in await self._metastore.unfinished_payloads(kind)
        ]
        if len(unfinished) >= UNFINISHED_MAX:
            return
        waiting = await self._metastore.waiting_files(self._scan_from, FILES_PER_LEVEL)
        counted = Counter(file.level for file in waiting.files)
        for level in range(LAST_LEVEL + 1):
            self._metrics.waiting.labels(str(level)).set(counted[level])
        busy = frozenset(file_id for other in unfinished for file_id in other.file_ids)
        chosen = choose(waiting.files, busy, self._limits)
        if chosen:
            await self._metastore.enqueue_jobs([_job(wanted) for wanted in chosen], by=lease.token)
            for wanted in chosen:
                self._metrics.planned.labels(str(wanted.level)).inc()
        self._scan_from = waiting.next_scan


def _job(wanted: CompactionJob) -> NewJob:
    """Level 1 goes first: it is where rows and files pile up."""
    kind = LARGE_KIND if wanted.is_large else COMPACT
    return NewJob(kind, f"{wanted.level}:{wanted.file_ids[0]}", encode(wanted), priority=1 - wanted.level)
