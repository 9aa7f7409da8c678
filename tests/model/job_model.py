"""The reference model of jobs: JobApi in plain sequential Python, on an injected clock.

Place: what Postgres is compared with (tests/contracts/test_jobs_contract.py), and a fake of it
under the job loop. Invariant: one list, gone through from the start, each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.metastore.api.jobs import Job, JobSchedule, JobState, JobToken, NewJob
from headrace.metastore.api.reports import JobCount, JobStatus
from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError

KEPT_MS = 86_400_000
UNFINISHED = (JobState.WAITING, JobState.LEASED)


@dataclass
class ModelJob:
    """One row."""

    job_id: int
    kind: str
    key: str
    payload: bytes
    priority: int
    period_ms: int | None
    max_attempts: int | None
    due_ms: int
    created_ms: int
    state: JobState = JobState.WAITING
    epoch: int = 0
    worker: str | None = None
    attempts: int = 0
    progress: str = ""
    last_error: str | None = None
    leased_ms: int | None = None
    ended_ms: int | None = None


class ModelJobs:
    """JobApi. Nothing is ever concurrent here."""

    def __init__(self, clock: Clock, *, next_epoch: Callable[[], int] | None = None) -> None:
        """`next_epoch`: the cluster's counter; without one each job counts its leases."""
        self.clock = clock
        self._next_epoch = next_epoch
        self.controller_epoch = 1
        self.jobs: list[ModelJob] = []

    async def schedule_jobs(self, controller_epoch: int, schedules: Sequence[JobSchedule]) -> None:
        """See metastore.api.jobs.JobApi."""
        if controller_epoch != self.controller_epoch:
            raise FencedError("controller epoch is stale")
        now = self.clock.wall_ms()
        for wanted in schedules:
            job = self._unfinished(wanted.kind, wanted.key)
            if job is None:
                job = self._add(wanted.kind, wanted.key, wanted.payload, wanted.priority, now)
            job.payload, job.priority, job.period_ms, job.max_attempts = (
                *(wanted.payload, wanted.priority, wanted.period_ms),
                None,
            )
            if job.state is JobState.WAITING:
                job.due_ms = min(job.due_ms, now + wanted.period_ms)

    async def enqueue_jobs(self, jobs: Sequence[NewJob], *, by: JobToken | None = None) -> list[bool]:
        """See metastore.api.jobs.JobApi."""
        if by is not None:
            self._held(by)
        added = []
        for new in jobs:
            added.append(self._unfinished(new.kind, new.key) is None)
            if added[-1]:
                job = self._add(new.kind, new.key, new.payload, new.priority, self.clock.wall_ms() + new.delay_ms)
                job.max_attempts = new.max_attempts
        return added

    async def hand_over_jobs(self, kind: str, to_kind: str, *, after_ms: int, attempts: int, by: JobToken) -> int:
        """See metastore.api.jobs.JobApi."""
        self._held(by)
        now, handed = self.clock.wall_ms(), 0
        for job in self.jobs:
            is_free = job.state is JobState.WAITING or (job.state is JobState.LEASED and job.due_ms <= now)
            is_stale = job.created_ms <= now - after_ms or job.attempts >= attempts
            if job.kind == kind and is_free and is_stale and self._unfinished(to_kind, job.key) is None:
                job.kind, job.state, job.due_ms, job.attempts = to_kind, JobState.WAITING, now, 0
                handed += 1
        return handed

    async def claim_job(
        self, worker: str, kinds: Sequence[str], lease_ms: int, *, node_id: int | None = None
    ) -> Job | None:
        """See metastore.api.jobs.JobApi."""
        now = self.clock.wall_ms()
        due = [job for job in self.jobs if job.state in UNFINISHED and job.kind in kinds and job.due_ms <= now]
        for job in sorted(due, key=lambda job: (-job.priority, job.due_ms, job.job_id)):
            if job.max_attempts is not None and job.attempts >= job.max_attempts:
                job.state, job.ended_ms = JobState.GIVEN_UP, now
                job.last_error = job.last_error or "its leases ran out"
                continue
            job.epoch = job.epoch + 1 if self._next_epoch is None else self._next_epoch()
            job.state, job.worker, job.attempts = JobState.LEASED, worker, job.attempts + 1
            job.leased_ms, job.due_ms = now, now + lease_ms
            token = JobToken(job.job_id, job.epoch)
            return Job(token, job.kind, job.key, job.payload, job.attempts, job.progress)
        return None

    async def heartbeat_job(self, token: JobToken, lease_ms: int, progress: str) -> None:
        """See metastore.api.jobs.JobApi."""
        job = self._held(token)
        job.due_ms, job.progress = self.clock.wall_ms() + lease_ms, progress

    async def finish_job(self, token: JobToken) -> None:
        """See metastore.api.jobs.JobApi."""
        job, ended = self._lease(token)
        if not ended:
            now = self.clock.wall_ms()
            job.state = JobState.DONE if job.period_ms is None else JobState.WAITING
            job.due_ms, job.ended_ms = now + (job.period_ms or 0), now
            job.attempts, job.progress, job.last_error = 0, "", None

    async def fail_job(self, token: JobToken, error: str, retry_after_ms: int | None) -> JobState:
        """See metastore.api.jobs.JobApi."""
        job, ended = self._lease(token)
        if not ended:
            now = self.clock.wall_ms()
            over = retry_after_ms is None or (job.max_attempts is not None and job.attempts >= job.max_attempts)
            job.due_ms = now + (retry_after_ms if retry_after_ms is not None else job.period_ms or 0)
            job.state, job.last_error = JobState.WAITING, error
            if over and job.period_ms is None:
                job.state, job.ended_ms = JobState.GIVEN_UP, now
        return job.state

    async def release_job(self, token: JobToken) -> None:
        """See metastore.api.jobs.JobApi."""
        job, ended = self._lease(token)
        if not ended:
            job.state, job.due_ms, job.attempts = JobState.WAITING, self.clock.wall_ms(), job.attempts - 1

    async def list_jobs(self, limit: int) -> list[JobStatus]:
        """See metastore.api.jobs.JobApi."""
        open_jobs = [job for job in self.jobs if job.state in UNFINISHED]
        ended = [job for job in self.jobs if job.state not in UNFINISHED]
        ended.sort(key=lambda job: (job.ended_ms or 0, job.job_id), reverse=True)
        return [_status(job) for job in [*open_jobs, *ended][:limit]]

    async def count_jobs(self) -> list[JobCount]:
        """See metastore.api.jobs.JobApi."""
        counted = []
        for kind, state in sorted({(job.kind, job.state) for job in self.jobs}):
            late = [self.clock.wall_ms() - job.due_ms for job in self.jobs if (job.kind, job.state) == (kind, state)]
            counted.append(JobCount(kind, state, len(late), max(0, *late) if state in UNFINISHED else 0))
        return counted

    async def prune_jobs(self, limit: int) -> int:
        """See metastore.api.jobs.JobApi."""
        old = [j for j in self.jobs if j.state not in UNFINISHED and (j.ended_ms or 0) < self.clock.wall_ms() - KEPT_MS]
        for job in old[:limit]:
            self.jobs.remove(job)
        return len(old[:limit])

    def assert_held(self, token: JobToken) -> None:
        """Do what fences a worker's calls."""
        self._held(token)

    def is_held(self, token: JobToken) -> bool:
        """Return whether that lease holds."""
        return any((job.job_id, job.epoch) == token and job.state is JobState.LEASED for job in self.jobs)

    # -- inside

    def _add(self, kind: str, key: str, payload: bytes, priority: int, due_ms: int) -> ModelJob:
        job = ModelJob(len(self.jobs) + 1, kind, key, payload, priority, None, None, due_ms, self.clock.wall_ms())
        self.jobs.append(job)
        return job

    def _unfinished(self, kind: str, key: str) -> ModelJob | None:
        return next((j for j in self.jobs if (j.kind, j.key) == (kind, key) and j.state in UNFINISHED), None)

    def _lease(self, token: JobToken) -> tuple[ModelJob, bool]:
        """The job, and whether this very lease has ended."""
        for job in self.jobs:
            if (job.job_id, job.epoch) == token:
                return job, job.state is not JobState.LEASED
        raise FencedError(f"job has another holder: {token}")

    def _held(self, token: JobToken) -> ModelJob:
        job, ended = self._lease(token)
        if ended:
            raise FencedError(f"job has another holder: {token}")
        return job


def _status(job: ModelJob) -> JobStatus:
    return JobStatus(
        *(job.job_id, job.kind, job.key, job.state, job.priority, job.period_ms, job.due_ms, job.epoch, job.worker),
        *(job.attempts, job.progress, job.last_error, job.created_ms, job.leased_ms, job.ended_ms),
    )
