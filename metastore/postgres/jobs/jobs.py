"""Jobs in Postgres: enqueue, lease, renew, end.

Place: under the controller's schedules, planners and the workers' runner; implements metastore.api.jobs.JobApi. Read
pins are rows of the jobs table, which the janitor looks at anyway; headrace.scan takes them.
Invariant: each operation is one statement that judges the lease under the job's row lock.
Invariant of read pins: a pin is granted before the look-ups that it protects begin; its end is the row's lease.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metastore.api.jobs import GrantedPin, Job, JobApi, JobSchedule, JobToken, NewJob
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement
from headrace.storage.errors import FencedError

_SCHEDULE_JOBS = Statement("schedule_jobs", writes=True)
_ENQUEUE_JOBS = Statement("enqueue_jobs", writes=True)
_CLAIM_JOB = Statement("claim_job_as", writes=True)


class PostgresJobs(PostgresNoun):
    """Implements metastore.api.jobs.JobApi."""

    heartbeat_job = calls(JobApi.heartbeat_job, writes=True)
    finish_job = calls(JobApi.finish_job, writes=True)
    fail_job = calls(JobApi.fail_job, writes=True, retry_ms="retry_after_ms")
    release_job = calls(JobApi.release_job, writes=True)
    hand_over_jobs = calls(JobApi.hand_over_jobs, writes=True, by_job="by.job_id", by_epoch="by.epoch")

    async def schedule_jobs(self, controller_epoch: int, schedules: Sequence[JobSchedule]) -> None:
        (is_controller,) = await _SCHEDULE_JOBS.row(
            self.pool,
            controller_epoch=controller_epoch,
            kinds=[schedule.kind for schedule in schedules],
            keys=[schedule.key for schedule in schedules],
            payloads=[schedule.payload for schedule in schedules],
            priorities=[schedule.priority for schedule in schedules],
            periods=[schedule.period_ms for schedule in schedules],
        )
        if not is_controller:
            raise FencedError(f"controller epoch is stale: controller_epoch={controller_epoch}")

    async def enqueue_jobs(self, jobs: Sequence[NewJob], *, by: JobToken | None = None) -> list[bool]:
        rows = await _ENQUEUE_JOBS.rows(
            self.pool,
            by_job=None if by is None else by.job_id,
            by_epoch=None if by is None else by.epoch,
            kinds=[job.kind for job in jobs],
            keys=[job.key for job in jobs],
            payloads=[job.payload for job in jobs],
            priorities=[job.priority for job in jobs],
            delays_ms=[job.delay_ms for job in jobs],
            max_attempts=[job.max_attempts for job in jobs],
        )
        return [added for (added,) in rows]

    async def claim_job(
        self, worker: str, kinds: Sequence[str], lease_ms: int, *, node_id: int | None = None
    ) -> Job | None:
        rows = await _CLAIM_JOB.rows(self.pool, worker=worker, kinds=list(kinds), lease_ms=lease_ms, broker_id=node_id)
        return Job(JobToken(*rows[0][:2]), *rows[0][2:]) if rows else None


_PIN_READS = Statement("pin_reads", writes=True)


class PostgresPins(PostgresNoun):
    """Implements what JobApi says of read pins."""

    release_pins = calls(JobApi.release_pins, writes=True, job_ids="tokens.job_id", epochs="tokens.epoch")

    async def pin_reads(self, holder: str, term_ms: int, default_max_ms: int) -> GrantedPin:
        job_id, epoch, max_term_ms = await _PIN_READS.row(
            self.pool, holder=holder, term_ms=term_ms, default_max_ms=default_max_ms
        )
        return GrantedPin(None if job_id is None else JobToken(job_id, epoch), max_term_ms)
