"""Jobs: units of background work, each leased to one worker at a time.

Place: the active controller keeps periodic jobs there, planners add others, workers claim them
(jobs/runner.py). Time is the database's, read after the job's row lock.
Invariant: a job's epoch rises with each lease, and all that its holder does for it is done under
(job id, epoch): SQL that acts for a job calls assert_job first, under which no worker can claim the job.
So a worker that lost its lease changes nothing any more. If a worker crashes, its lease expires and the
next one claims the job.
A read pin is the lease of a job that no worker takes (docs/decisions/0027). It is taken before a scan is planned
(headrace.scan), by processes that end before the read does and renew nothing: it keeps every file that was live when it
was granted, until its term ends. After that only files that are deleted meanwhile are missing: bytes that are there are
the right ones.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class JobState(enum.IntEnum):
    """Numbers are stored: never reuse one."""

    WAITING = 0
    LEASED = 1
    DONE = 2
    GIVEN_UP = 3


class JobToken(NamedTuple):
    """One lease of one job: what every fenced action takes."""

    job_id: int
    epoch: int


READ_PIN = "read"
"""The kind of the jobs that are read pins; SQL knows it too."""


class GrantedPin(NamedTuple):
    """`token` is None if the asked term is longer than `max_term_ms`: nothing was granted then."""

    token: JobToken | None
    max_term_ms: int


@dataclass(frozen=True, slots=True)
class NewJob:
    """Work to be done once. `key` names it among the unfinished jobs of its kind."""

    kind: str
    key: str
    payload: bytes = b""
    priority: int = 0
    """Higher first."""
    delay_ms: int = 0
    max_attempts: int = 10
    """It is given up when the last of so many leases failed or ran out."""


@dataclass(frozen=True, slots=True)
class JobSchedule:
    """Work to be done again and again: the next run starts `period_ms` after the end of the last."""

    kind: str
    period_ms: int
    key: str = ""
    payload: bytes = b""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A job that was claimed."""

    token: JobToken
    kind: str
    key: str
    payload: bytes
    attempts: int
    """How often it was claimed since it was last done, this time included."""
    progress: str
    """What its last holder said; "" if there was none."""


class JobApi(Protocol):
    """FencedError, for each operation that takes a token: the job has another holder, or ended otherwise."""

    async def schedule_jobs(self, controller_epoch: int, schedules: Sequence[JobSchedule]) -> None:
        """Make sure that these periodic jobs are there. Idempotent; a changed period counts from now on.

        FencedError unless `controller_epoch` is still the active controller's.
        """

    async def enqueue_jobs(self, jobs: Sequence[NewJob], *, by: JobToken | None = None) -> list[bool]:
        """Add jobs; False where an unfinished job of the kind has the same key. `by` fences the planner."""

    async def hand_over_jobs(self, kind: str, to_kind: str, *, after_ms: int, attempts: int, by: JobToken) -> int:
        """Let jobs of `kind` be `to_kind` that were added `after_ms` ago or claimed `attempts` times; how many.

        Only jobs without a holder; they start again, and a former holder has lost the job. `by` fences the planner.
        """

    async def claim_job(
        self, worker: str, kinds: Sequence[str], lease_ms: int, *, node_id: int | None = None
    ) -> Job | None:
        """Lease the most urgent job that is due or has an expired lease; None when there is none.

        `node_id`: of the agent in the worker's process, which the records of segments name; None if there is none.
        If the answer is lost, the lease expires.
        """

    async def heartbeat_job(self, token: JobToken, lease_ms: int, progress: str) -> None:
        """Renew the lease. `progress` is what people and the next holder read."""

    async def finish_job(self, token: JobToken) -> None:
        """Done: gone from the queue, or waiting for its next period. Idempotent."""

    async def fail_job(self, token: JobToken, error: str, retry_after_ms: int | None) -> JobState:
        """Back into the queue, not before `retry_after_ms`; given up when attempts ran out, or for None.

        A periodic job is never given up: for None it waits for its period. Idempotent.
        """

    async def release_job(self, token: JobToken) -> None:
        """Let another worker continue at once; this lease does not count as an attempt. Idempotent."""

    async def pin_reads(self, holder: str, term_ms: int, default_max_ms: int) -> GrantedPin:
        """Keep all files that are live now for `term_ms` on the database's clock.

        At most the cluster's read.pin.max.ms, `default_max_ms` while it has no value. A lost answer costs one pin.
        """

    async def release_pins(self, tokens: list[JobToken]) -> None:
        """End these pins before their term. Idempotent."""
