"""The job loop on injected time: leases kept and lost, failures, answers that are lost, a stop in mid-work."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.jobs.lease import Lease
from headrace.jobs.runner import JobMetrics, JobRunner, RunnerTerms
from headrace.metastore.api.jobs import Job, JobSchedule, JobState, NewJob
from headrace.storage.errors import FencedError, InvalidError, OutcomeUnknownError, UnavailableError
from headrace.storage.supervision import Supervisor
from tests.manual_clock import ManualClock
from tests.model.job_model import ModelJobs
from tests.seeds import seeds

LEASE_SECONDS = 30.0


class FlakyJobs(ModelJobs):
    """`lost[operation]`: raised instead of the answer, one per call, after the operation was done."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.down: Counter[str] = Counter()
        """Calls of an operation that do nothing and say so, from now on."""
        self.lost: Counter[str] = Counter()
        """Calls of an operation with a lost response, from now on."""
        self.asked: Counter[str] = Counter()
        """Calls of each operation so far."""
        self.bugs: Counter[str] = Counter()
        """Calls of an operation that break, from now on."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.endswith("_job"):
            return found

        async def call(*arguments: Any, **named: Any) -> Any:
            self.asked[name] += 1
            if self.bugs[name]:
                self.bugs[name] -= 1
                raise ZeroDivisionError(name)
            if self.down[name]:
                self.down[name] -= 1
                raise UnavailableError("down")
            answer = await found(*arguments, **named)
            if self.lost[name]:
                self.lost[name] -= 1
                raise OutcomeUnknownError("lost")
            return answer

        return call


class Works:
    """A runner and what its handler did. `result` ends the running handler: an error, or None for success."""

    def __init__(self, api: FlakyJobs, clock: ManualClock, name: str, slots: int = 1) -> None:
        self.began: list[Job] = []
        self.leases: list[Lease] = []
        self.cancelled = 0
        self.result: asyncio.Queue[BaseException | None] = asyncio.Queue()
        self.api, self.clock = api, clock
        self.registry = CollectorRegistry()
        metrics = JobMetrics(clock, self.registry)
        self.runner = JobRunner(
            *(
                api,
                {"merge": self.handle},
                RunnerTerms(name, slots),
                clock,
                random.Random(1),
                metrics,
                Supervisor(clock),
            )
        )
        self.runner.start()

    async def handle(self, job: Job, lease: Lease) -> None:
        self.began.append(job)
        self.leases.append(lease)
        try:
            error = await self.result.get()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if error is not None:
            raise error

    async def enqueued(self, **more: Any) -> None:
        """A job, and time for a worker to start it."""
        await self.api.enqueue_jobs([NewJob("merge", "x", **more)])
        await self.clock.advance(2)

    def ended(self, outcome: str) -> float:
        labels = {"kind": "merge", "outcome": outcome}
        return self.registry.get_sample_value("headrace_jobs_ended_total", labels) or 0


@pytest.fixture
def api(fake_clock: ManualClock) -> FlakyJobs:
    return FlakyJobs(fake_clock)


@pytest.fixture
async def works(api: FlakyJobs, fake_clock: ManualClock) -> AsyncIterator[Works]:
    works = Works(api, fake_clock, "one")
    yield works
    await works.runner.stop(0)


async def test_a_job_is_handled_and_done(works: Works) -> None:
    await works.enqueued()
    assert [job.key for job in works.began] == ["x"]
    works.result.put_nowait(None)
    await works.clock.settle()
    assert works.api.jobs[0].state is JobState.DONE
    assert works.ended("done") == 1


async def test_a_long_job_keeps_its_lease_and_tells_how_far_it_got(works: Works) -> None:
    await works.enqueued()
    works.leases[0].progress = "half way"
    await works.clock.advance(10 * LEASE_SECONDS)
    assert works.api.jobs[0].progress == "half way"
    await works.leases[0].save_progress("three quarters")
    assert works.api.jobs[0].progress == "three quarters"
    assert (len(works.began), works.api.jobs[0].epoch) == (1, 1)


async def test_a_metastore_that_is_away_for_less_than_a_lease_costs_nothing(works: Works) -> None:
    await works.enqueued()
    works.api.down["heartbeat_job"] = works.api.lost["heartbeat_job"] = 1
    await works.clock.advance(2 * LEASE_SECONDS)
    assert (works.cancelled, works.api.jobs[0].epoch) == (0, 1)


async def test_work_stops_when_the_lease_ran_out_unheard_and_goes_on_later(works: Works) -> None:
    await works.enqueued()
    works.api.down["heartbeat_job"] = 1000
    await works.clock.advance(LEASE_SECONDS - 3)
    assert works.cancelled == 0
    await works.clock.advance(LEASE_SECONDS)
    assert works.cancelled == 1
    assert works.ended("lost") == 1
    assert [job.token.epoch for job in works.began] == [1, 2], "its own lease ran out: claimed again"


async def test_a_stopped_worker_finds_its_job_elsewhere_and_gives_it_up(works: Works) -> None:
    await works.enqueued()
    works.clock.jump(2 * LEASE_SECONDS)  # SIGSTOP: nothing here ran meanwhile
    other = await works.api.claim_job("other", ["merge"], 600_000)
    assert other is not None
    await works.clock.advance(LEASE_SECONDS)
    assert works.cancelled == 1
    assert (works.api.jobs[0].worker, works.api.jobs[0].epoch, works.api.jobs[0].state) == ("other", 2, JobState.LEASED)


async def test_a_dead_workers_job_goes_on_elsewhere_with_its_progress(works: Works) -> None:
    await works.enqueued()
    await works.leases[0].save_progress("step 3")
    for slot in works.runner._slots:  # SIGKILL
        works.api.down["release_job"] = 1000
        slot.cancel()
    await works.clock.advance(1)
    other = Works(works.api, works.clock, "two")
    await works.clock.advance(LEASE_SECONDS + 2)
    assert [(job.progress, job.attempts) for job in other.began] == [("step 3", 2)]
    await other.runner.stop(0)


@pytest.mark.parametrize("operation", ["finish_job", "fail_job"])
async def test_an_end_with_a_lost_response_is_reported_again(works: Works, operation: str) -> None:
    await works.enqueued()
    works.api.down[operation], works.api.lost[operation] = 2, 1
    works.result.put_nowait(None if operation == "finish_job" else UnavailableError("bucket away"))
    await works.clock.advance(2.5)
    assert works.api.jobs[0].state is (JobState.DONE if operation == "finish_job" else JobState.WAITING)
    assert works.api.jobs[0].attempts == (0 if operation == "finish_job" else 1)


async def test_failures_wait_longer_each_time_until_the_job_is_given_up(works: Works) -> None:
    await works.enqueued(max_attempts=4)
    waits = []
    for error in (UnavailableError("away"), RuntimeError("a bug"), FencedError("fenced"), OSError("disk")):
        works.result.put_nowait(error)
        await works.clock.settle()
        waits.append(works.api.jobs[0].due_ms - works.clock.wall_ms())
        await works.clock.advance(20)
    assert works.api.jobs[0].state is JobState.GIVEN_UP
    assert works.api.jobs[0].last_error == "OSError: disk"
    assert [500 << n <= wait <= 1500 << n for n, wait in enumerate(waits[:3])] == [True] * 3
    assert works.ended("failed") == 4


async def test_what_can_never_work_is_given_up_at_once(works: Works) -> None:
    await works.enqueued()
    works.result.put_nowait(InvalidError("no such thing"))
    await works.clock.settle()
    assert works.api.jobs[0].state is JobState.GIVEN_UP


async def test_a_bug_in_lease_renewal_is_logged_and_is_not_a_lost_lease(works: Works) -> None:
    await works.enqueued()
    works.api.bugs["heartbeat_job"] = 1
    await works.clock.advance(LEASE_SECONDS / 2)
    assert works.cancelled == 1
    assert (works.ended("failed"), works.ended("lost")) == (1, 0)
    assert "ZeroDivisionError" in (works.api.jobs[0].last_error or "")


async def test_a_handler_that_cancels_itself_has_failed(works: Works) -> None:
    await works.enqueued()
    works.result.put_nowait(asyncio.CancelledError())
    await works.clock.advance(60)
    assert len(works.began) == 2, "and the slot works on"


async def test_a_stop_waits_for_jobs_within_its_grace(works: Works) -> None:
    await works.enqueued()
    await works.api.enqueue_jobs([NewJob("merge", "y")])
    stopping = asyncio.create_task(works.runner.stop(5))
    await works.clock.settle()
    works.result.put_nowait(None)
    await stopping
    assert [job.state for job in works.api.jobs] == [JobState.DONE, JobState.WAITING], "nothing new was begun"


async def test_a_stop_gives_back_what_did_not_end(works: Works) -> None:
    await works.enqueued()
    await works.runner.stop(0)
    assert works.cancelled == 1
    assert (works.api.jobs[0].state, works.api.jobs[0].attempts) == (JobState.WAITING, 0)
    assert works.ended("released") == 1


async def test_slots_work_side_by_side_and_idle_ones_stop_at_once(api: FlakyJobs, fake_clock: ManualClock) -> None:
    works = Works(api, fake_clock, "one", slots=3)
    await api.enqueue_jobs([NewJob("merge", key) for key in "xy"])
    await fake_clock.advance(2)
    assert sorted(job.key for job in works.began) == ["x", "y"]
    works.result.put_nowait(None)
    works.result.put_nowait(None)
    await fake_clock.settle()
    await asyncio.wait_for(works.runner.stop(3600), 600)
    assert [job.state for job in api.jobs] == [JobState.DONE, JobState.DONE]


async def test_an_idle_worker_looks_rarely_although_periodic_jobs_come(api: FlakyJobs, fake_clock: ManualClock) -> None:
    works = Works(api, fake_clock, "one")
    await fake_clock.advance(60)
    await api.schedule_jobs(api.controller_epoch, [JobSchedule("merge", period_ms=15_000)])
    api.asked.clear()
    for _ in range(600):
        if len(works.began) > api.asked["finish_job"] and works.result.empty():
            works.result.put_nowait(None)
        await fake_clock.advance(1)
    done = api.asked["finish_job"]
    assert 20 < done < 40
    assert api.asked["claim_job"] <= 2 * done + 600 / 6, "each job and a look after it; else every eight seconds"
    await works.runner.stop(0)


async def test_more_slots_open_at_once_and_fewer_finish_what_they_have(api: FlakyJobs, fake_clock: ManualClock) -> None:
    works = Works(api, fake_clock, "one", slots=1)
    await api.enqueue_jobs([NewJob("merge", str(number)) for number in range(9)])
    await fake_clock.advance(2)
    assert len(works.began) == 1
    works.runner.resize(3)
    await fake_clock.advance(2)
    assert len(works.began) == 3
    works.runner.resize(1)
    await fake_clock.advance(2)
    assert works.cancelled == 0, "running jobs continue"
    for _ in range(3):
        works.result.put_nowait(None)
    await fake_clock.advance(5)
    assert len(works.began) == 4, "one slot is left, with one job"
    works.runner.resize(2)
    await fake_clock.advance(2)
    assert len(works.began) == 5
    await works.runner.stop(0)
    assert works.cancelled == 2


class Disturbed:
    """Two workers at a time that crash, stop and miss answers, as `rng` decides."""

    def __init__(self, api: FlakyJobs, clock: ManualClock, rng: random.Random) -> None:
        self.api, self.clock, self.rng = api, clock, rng
        self.workers: list[JobRunner] = []
        self.actions: list[tuple[int, int]] = []
        """(job id, epoch) of each fenced action, in order."""

    async def handle(self, job: Job, lease: Lease) -> None:
        for _ in range(self.rng.randint(1, 4)):
            await self.clock.sleep(self.rng.uniform(0, 20))
            await self.api.heartbeat_job(lease.token, 30_000, lease.progress)
            self.actions.append(lease.token)
        if self.rng.random() < 0.3:
            raise self.rng.choice([UnavailableError("away"), RuntimeError("bug")])

    def fill(self) -> None:
        """A worker is busy."""
        while len(self.workers) < 2:
            metrics, rng = JobMetrics(self.clock, CollectorRegistry()), random.Random(self.rng.random())
            handlers = {"merge": self.handle}
            self.workers.append(
                JobRunner(self.api, handlers, RunnerTerms("w", 2), self.clock, rng, metrics, Supervisor(self.clock))
            )
            self.workers[-1].start()

    async def disturb(self) -> None:
        match self.rng.choice(["nothing"] * 6 + ["flaky", "kill", "stop", "resize"]):
            case "resize":
                self.rng.choice(self.workers).resize(self.rng.randint(1, 3))
            case "flaky":
                for name in ("claim_job", "heartbeat_job", "finish_job", "fail_job", "release_job"):
                    self.api.down[name], self.api.lost[name] = self.rng.randint(0, 2), self.rng.randint(0, 2)
            case "kill":
                for slot in self.workers.pop()._slots:
                    self.api.down["release_job"] += 1
                    slot.cancel()
            case "stop":
                await self.clock.run(self.workers.pop().stop(self.rng.uniform(0, 0.01)))


@pytest.mark.parametrize("seed", seeds(range(3), range(3, 10)))
async def test_every_job_is_done_by_one_lease_at_a_time_under_all_faults(
    api: FlakyJobs, fake_clock: ManualClock, seed: int
) -> None:
    rng = random.Random(seed)
    world = Disturbed(api, fake_clock, rng)
    await api.enqueue_jobs([NewJob("merge", str(n), max_attempts=100) for n in range(8)])
    for turn in range(400):
        world.fill()
        if turn < 40:
            await world.disturb()
        elif all(job.state is JobState.DONE for job in api.jobs):
            break
        await fake_clock.advance(rng.uniform(1, 15))
    assert {job.state for job in api.jobs} == {JobState.DONE}
    for job in api.jobs:
        epochs = [epoch for job_id, epoch in world.actions if job_id == job.job_id]
        assert epochs == sorted(epochs), "an older lease acted after a newer one"
    for worker in world.workers:
        await worker.stop(0)
