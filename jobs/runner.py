"""The job loop: claim a job, run the handler of its kind, end the lease.

Place: in a process with the role compactor; compactor/worker.py provides the handlers. Its metrics are here.
Each slot works on one job at a time. A handler that returns has finished its job; after an exception the job is
repeated with a growing delay, after InvalidError it is not repeated.
Invariant: a handler runs only while its lease is held (jobs/lease.py), and all its actions are fenced by the lease's
token. Ending a lease is repeated until it is confirmed or the lease ran out.
`stop` gives handlers the grace period to finish, then cancels them and returns their jobs to the queue.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.jobs.lease import Lease
from headrace.metastore.api.jobs import Job, JobApi
from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError, HeadraceError, InvalidError
from headrace.storage.supervision import Supervisor

SECONDS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)


@dataclass
class JobOutcome:
    """The result of a job in this process: done, failed, released, lost."""

    name: str = "lost"


class JobMetrics:
    """One set per process with the role compactor."""

    def __init__(self, clock: Clock, registry: CollectorRegistry) -> None:
        self._clock = clock
        self._running = Gauge("headrace_jobs_running", "Jobs running in this process", ["kind"], registry=registry)
        self._ended = Counter(
            "headrace_jobs_ended",
            "Jobs that ended in this process: done, failed, released (it stopped) or lost to another worker",
            ["kind", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "headrace_job_seconds",
            "Duration of a job in this process, for every result",
            ["kind"],
            buckets=SECONDS,
            registry=registry,
        )

    @contextmanager
    def running(self, kind: str) -> Iterator[JobOutcome]:
        """Measure a job; the caller sets the result."""
        outcome, began = JobOutcome(), self._clock.monotonic()
        self._running.labels(kind).inc()
        try:
            yield outcome
        finally:
            self._running.labels(kind).dec()
            self._ended.labels(kind, outcome.name).inc()
            self._seconds.labels(kind).observe(self._clock.monotonic() - began)


logger = logging.getLogger(__name__)

JobHandler = Callable[[Job, Lease], Awaitable[None]]

LEASE_MS = 30_000
IDLE_SECONDS, IDLE_SECONDS_MAX = 1.0, 8.0
"""Pause between claims when the queue is empty: doubled with each empty look, up to the maximum. A periodic job does
not shorten it: what it queued is found by its slot, which looks again at once."""
RETRY_MS = 1_000
RETRY_MAX_MS = 300_000
SETTLE_SECONDS = 0.5
"""Pause between attempts to report the end of a job."""


def no_agent() -> None:
    """The node id in a process without an agent."""


@dataclass(frozen=True, slots=True)
class RunnerTerms:
    """The worker that does jobs, and how many at a time."""

    worker: str
    """A name of this process, for people."""
    slots: int = 1
    lease_ms: int = LEASE_MS
    node_id: Callable[[], int | None] = no_agent
    """The node id of the agent in the process, None until there is one."""


class JobRunner:
    """Runs jobs of the kinds in `handlers`, from `start` to `stop`."""

    def __init__(
        self,
        api: JobApi,
        handlers: Mapping[str, JobHandler],
        terms: RunnerTerms,
        clock: Clock,
        rng: random.Random,
        metrics: JobMetrics,
        supervisor: Supervisor,
    ) -> None:
        self._supervisor = supervisor
        self._api, self._handlers = api, handlers
        self._clock, self._rng, self._metrics = clock, rng, metrics
        self._terms = terms
        self._idle: set[asyncio.Task[None]] = set()
        """Slots without a job: `stop` need not wait for them."""
        self._slot_count = terms.slots
        self._slots: list[asyncio.Task[None]] = []
        self._stopping = False
        self._idle_seconds = IDLE_SECONDS

    def start(self) -> None:
        """Start to look for jobs."""
        self.resize(self._slot_count)

    def resize(self, slots: int) -> None:
        """Run this many jobs at a time from now on; running jobs are finished."""
        self._slot_count = slots
        ended = [number for number, slot in enumerate(self._slots) if number < slots and slot.done()]
        for number in ended:
            self._slots[number] = self._open_slot(number)
        self._slots += [self._open_slot(number) for number in range(len(self._slots), slots)]

    def _open_slot(self, number: int) -> asyncio.Task[None]:
        return self._supervisor.keep("jobs", partial(self._work, number))

    async def drain(self) -> None:
        """Run one job after another until none is due. If cancelled, the running job is returned to the queue."""
        while await self._work_once():
            pass

    async def stop(self, grace_seconds: float) -> None:
        """Stop claiming; give handlers the grace period, then return their jobs to the queue. Safe in any state."""
        self._stopping = True
        for slot in self._idle:
            slot.cancel()
        if self._slots:
            await asyncio.wait(self._slots, timeout=grace_seconds)
        for slot in self._slots:
            slot.cancel()
        await asyncio.gather(*self._slots, return_exceptions=True)

    async def _work(self, number: int) -> None:
        """One slot, while there are more than `number` slots."""
        slot = asyncio.current_task()
        assert slot is not None
        while not self._stopping and number < self._slot_count:
            if await self._work_once():
                continue
            self._idle.add(slot)
            if not self._stopping:
                pause, self._idle_seconds = self._idle_seconds, min(2 * self._idle_seconds, IDLE_SECONDS_MAX)
                await self._clock.sleep(pause * (0.5 + self._rng.random()))
            self._idle.discard(slot)

    async def _work_once(self) -> bool:
        """Return whether there was a job."""
        claimed_at = self._clock.monotonic()
        job = await self._claim()
        if job is None:
            return False
        if job.key:
            self._idle_seconds = IDLE_SECONDS  # where there is one, there may be more
        await self._run(job, Lease(self._api, job, self._clock, claimed_at=claimed_at, lease_ms=self._terms.lease_ms))
        return True

    async def _claim(self) -> Job | None:
        try:
            kinds, node_id = list(self._handlers), self._terms.node_id()
            return await self._api.claim_job(self._terms.worker, kinds, self._terms.lease_ms, node_id=node_id)
        except HeadraceError as error:
            logger.warning("cannot claim a job: error=%s", error)
            return None

    async def _run(self, job: Job, lease: Lease) -> None:
        level = logging.INFO if job.key else logging.DEBUG  # those without a key come every few seconds
        epoch = job.token.epoch
        logger.log(level, "job started: kind=%s key=%s attempt=%d epoch=%d", job.kind, job.key, job.attempts, epoch)
        with self._metrics.running(job.kind) as outcome:
            handling = asyncio.ensure_future(self._handlers[job.kind](job, lease))
            keeping = asyncio.create_task(lease.keep())
            try:
                await asyncio.wait({handling, keeping}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                await _cancelled(handling, keeping)
                outcome.name = await self._settle(lease, "released", lambda: self._api.release_job(job.token))
                raise
            is_lost = not handling.done()
            await _cancelled(handling, keeping)
            error = _error(
                keeping if is_lost else handling
            )  # until the first of the two ends; the keeper ends when the lease is lost
            outcome.name = "lost" if is_lost and error is None else await self._end(job, lease, error)
        level = logging.INFO if outcome.name != "done" else level
        logger.log(level, "job ended: kind=%s key=%s outcome=%s", job.kind, job.key, outcome.name)

    async def _end(self, job: Job, lease: Lease, error: BaseException | None) -> str:
        """The outcome, by the handler's exception."""
        if error is None:
            return await self._settle(lease, "done", lambda: self._api.finish_job(job.token))
        bug = None if isinstance(error, HeadraceError) else error
        problem = f"{type(error).__name__}: {error}"
        logger.log(
            logging.ERROR if bug else logging.WARNING,
            "job failed: kind=%s key=%s attempt=%d error=%s",
            job.kind,
            job.key,
            job.attempts,
            problem,
            exc_info=bug,
        )
        retry_ms = None if isinstance(error, InvalidError) else self._retry_ms(job.attempts)
        return await self._settle(lease, "failed", lambda: self._api.fail_job(job.token, problem, retry_ms))

    async def _settle(self, lease: Lease, outcome: str, tell: Callable[[], Awaitable[object]]) -> str:
        """Repeat the report until the metastore answers; "lost" if another worker has the job, or may get it soon."""
        while True:
            try:
                await tell()
                return outcome
            except FencedError as error:
                logger.warning("job lost: kind=%s key=%s error=%s", lease.job.kind, lease.job.key, error)
                return "lost"
            except HeadraceError as error:
                logger.warning(
                    "cannot report the end of a job: kind=%s key=%s error=%s", lease.job.kind, lease.job.key, error
                )
                if self._clock.monotonic() >= lease.held_until or self._stopping:
                    return "lost"
            await self._clock.sleep(SETTLE_SECONDS)

    def _retry_ms(self, attempts: int) -> int:
        delay_ms: int = min(RETRY_MS << min(attempts - 1, 20), RETRY_MAX_MS)
        return round(delay_ms * (0.5 + self._rng.random()))


def _error(ended: asyncio.Future[None]) -> BaseException | None:
    return asyncio.CancelledError("by itself") if ended.cancelled() else ended.exception()


async def _cancelled(*tasks: asyncio.Future[None]) -> None:
    """Cancel the tasks that still run, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
