"""Jobs in Postgres and in the model: one holder at a time; leases that run out, lost answers, a clock that jumps."""

from __future__ import annotations

import uuid
from typing import Protocol

import pytest

from headrace.metastore.api.housekeeping import HousekeepingApi
from headrace.metastore.api.jobs import Job, JobApi, JobSchedule, JobState, JobToken, NewJob
from headrace.metastore.api.reports import JobStatus, ReportApi
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError
from tests.manual_clock import ManualClock
from tests.metastore.sessions import move_time, session
from tests.model.job_model import ModelJobs

LEASE_MS = 30_000


class JobsUnderTest(Protocol):
    """A JobApi with a clock that tests move."""

    @property
    def api(self) -> JobApi: ...
    @property
    def reports(self) -> ReportApi: ...
    @property
    def housekeeping(self) -> HousekeepingApi: ...
    async def move_clock(self, total_seconds: float) -> None:
        """Let its clock be this far ahead of where it was at first."""

    async def controller_epoch(self) -> int:
        """The active controller's."""


class InPostgres:
    """The real thing."""

    def __init__(self, metastore: PostgresMetastore, url: str) -> None:
        self.api, self.reports, self.housekeeping = metastore.jobs, metastore.reports, metastore.housekeeping
        self._metastore, self._url = metastore, url

    async def move_clock(self, total_seconds: float) -> None:
        async with session(self._url) as connection:
            await move_time(connection, total_seconds)

    async def controller_epoch(self) -> int:
        return (await self._metastore.controller.hold_controller_lease(0, uuid.UUID(int=1), 60_000)).controller_epoch


class InModel:
    """The reference model."""

    def __init__(self) -> None:
        self._clock, self._ahead = ManualClock(), 0.0
        self.api = self.reports = self.housekeeping = ModelJobs(self._clock)

    async def move_clock(self, total_seconds: float) -> None:
        self._clock.jump(total_seconds - self._ahead)
        self._ahead = total_seconds

    async def controller_epoch(self) -> int:
        return self.api.controller_epoch


@pytest.fixture(params=["postgres", "model"])
def jobs(request: pytest.FixtureRequest) -> JobsUnderTest:
    if request.param == "model":
        return InModel()
    return InPostgres(request.getfixturevalue("metastore"), request.getfixturevalue("metastore_url"))


async def claim(api: JobApi, worker: str = "a", *kinds: str) -> Job:
    """The job that there must be."""
    job = await api.claim_job(worker, kinds or ("merge",), LEASE_MS)
    assert job is not None
    return job


async def only_job(jobs: JobsUnderTest) -> JobStatus:
    """The only job that is listed."""
    (status,) = await jobs.reports.list_jobs(10)
    return status


async def test_a_job_is_enqueued_once_claimed_once_and_done(jobs: JobsUnderTest) -> None:
    api = jobs.api
    assert await api.enqueue_jobs([NewJob("merge", "x", b"plan"), NewJob("merge", "y")]) == [True, True]
    assert await api.enqueue_jobs([NewJob("merge", "y"), NewJob("sweep", "y")]) == [False, True]
    first = await claim(api)
    assert first == Job(first.token, "merge", "x", b"plan", 1, "")
    assert (await claim(api, "b")).key == "y"
    assert await api.claim_job("c", ["merge"], LEASE_MS) is None
    assert await api.enqueue_jobs([NewJob("merge", "x")]) == [False]
    await api.finish_job(first.token)
    await api.finish_job(first.token)  # its answer was lost
    assert await api.enqueue_jobs([NewJob("merge", "x")]) == [True]
    counted = {(kind, state): jobs for kind, state, jobs, _ in await jobs.reports.count_jobs()}
    assert counted == {
        ("merge", JobState.WAITING): 1,
        ("merge", JobState.LEASED): 1,
        ("merge", JobState.DONE): 1,
        ("sweep", JobState.WAITING): 1,
    }


async def test_the_more_urgent_job_comes_first_then_the_one_that_was_due_first(jobs: JobsUnderTest) -> None:
    api = jobs.api
    await api.enqueue_jobs([NewJob("merge", "late", delay_ms=60_000), NewJob("merge", "plain")])
    await api.enqueue_jobs([NewJob("merge", "plain too"), NewJob("merge", "urgent", priority=1)])
    assert [(await claim(api)).key for _ in range(3)] == ["urgent", "plain", "plain too"]
    assert await api.claim_job("a", ["merge"], LEASE_MS) is None


async def test_a_worker_that_lost_its_lease_changes_nothing(jobs: JobsUnderTest) -> None:
    api = jobs.api
    await api.enqueue_jobs([NewJob("merge", "x")])
    old = await claim(api, "old")
    await api.heartbeat_job(old.token, LEASE_MS, "half way")
    await jobs.move_clock(LEASE_MS / 1000 + 1)
    new = await claim(api, "new")
    assert (new.token, new.attempts, new.progress) == (JobToken(old.token.job_id, old.token.epoch + 1), 2, "half way")
    before = await only_job(jobs)
    for act in (
        api.heartbeat_job(old.token, LEASE_MS, "still me"),
        api.finish_job(old.token),
        api.fail_job(old.token, "no", 0),
        api.release_job(old.token),
        api.enqueue_jobs([NewJob("merge", "z")], by=old.token),
    ):
        with pytest.raises(FencedError):
            await act
    assert await only_job(jobs) == before
    assert await api.enqueue_jobs([NewJob("merge", "z")], by=new.token) == [True]


async def test_an_expired_lease_holds_until_another_worker_claims_the_job(jobs: JobsUnderTest) -> None:
    api = jobs.api
    await api.enqueue_jobs([NewJob("merge", "x")])
    job = await claim(api)
    await jobs.move_clock(3600)
    await api.heartbeat_job(job.token, LEASE_MS, "")
    assert await api.claim_job("b", ["merge"], LEASE_MS) is None
    await api.finish_job(job.token)
    assert (await only_job(jobs)).state is JobState.DONE


async def test_a_job_that_fails_waits_and_is_given_up_in_the_end(jobs: JobsUnderTest) -> None:
    api = jobs.api
    await api.enqueue_jobs([NewJob("merge", "x", max_attempts=2)])
    job = await claim(api)
    assert await api.fail_job(job.token, "bucket away", 5_000) is JobState.WAITING
    assert await api.fail_job(job.token, "bucket away", 5_000) is JobState.WAITING  # its answer was lost
    assert await api.claim_job("a", ["merge"], LEASE_MS) is None
    await jobs.move_clock(6)
    job = await claim(api)
    assert await api.fail_job(job.token, "bucket still away", 5_000) is JobState.GIVEN_UP
    status = await only_job(jobs)
    assert (status.state, status.attempts, status.last_error) == (JobState.GIVEN_UP, 2, "bucket still away")
    assert await api.enqueue_jobs([NewJob("merge", "x")]) == [True]


async def test_work_that_kills_its_worker_is_given_up(jobs: JobsUnderTest) -> None:
    api = jobs.api
    await api.enqueue_jobs([NewJob("merge", "x", max_attempts=2)])
    for attempt in (1, 2):
        await claim(api)
        await jobs.move_clock(attempt * 60)
    assert await api.claim_job("a", ["merge"], LEASE_MS) is None
    status = await only_job(jobs)
    assert (status.state, status.last_error) == (JobState.GIVEN_UP, "its leases ran out")


async def test_without_a_retry_a_job_is_given_up_at_once(jobs: JobsUnderTest) -> None:
    api = jobs.api
    await api.enqueue_jobs([NewJob("merge", "x")])
    assert await api.fail_job((await claim(api)).token, "nonsense", None) is JobState.GIVEN_UP


async def test_a_released_job_goes_on_elsewhere_and_the_lease_was_no_attempt(jobs: JobsUnderTest) -> None:
    api = jobs.api
    await api.enqueue_jobs([NewJob("merge", "x", max_attempts=1)])
    job = await claim(api)
    await api.heartbeat_job(job.token, LEASE_MS, "3 of 4")
    await api.release_job(job.token)
    await api.release_job(job.token)
    again = await claim(api, "b")
    assert (again.attempts, again.progress) == (1, "3 of 4")


async def test_periodic_jobs_come_again_one_period_after_they_ended(jobs: JobsUnderTest) -> None:
    api = jobs.api
    epoch = await jobs.controller_epoch()
    schedule = [JobSchedule("retention", 300_000)]
    await api.schedule_jobs(epoch, schedule)
    job = await claim(api, "a", "retention")
    await api.schedule_jobs(epoch, schedule)
    await api.finish_job(job.token)
    await api.schedule_jobs(epoch, schedule)
    assert await api.claim_job("a", ["retention"], LEASE_MS) is None
    await jobs.move_clock(301)
    again = await claim(api, "a", "retention")
    assert (again.token.job_id, again.attempts) == (job.token.job_id, 1)
    assert await api.fail_job(again.token, "broken", None) is JobState.WAITING  # never given up
    assert (await only_job(jobs)).last_error == "broken"


async def test_a_shorter_period_and_a_clock_that_went_back_do_not_leave_a_job_waiting(jobs: JobsUnderTest) -> None:
    api = jobs.api
    epoch = await jobs.controller_epoch()
    await api.schedule_jobs(epoch, [JobSchedule("retention", 300_000)])
    await api.finish_job((await claim(api, "a", "retention")).token)
    await api.schedule_jobs(epoch, [JobSchedule("retention", 1_000)])
    await jobs.move_clock(2)
    await api.finish_job((await claim(api, "a", "retention")).token)
    await jobs.move_clock(-7200)
    epoch = await jobs.controller_epoch()
    await api.schedule_jobs(epoch, [JobSchedule("retention", 1_000)])
    await jobs.move_clock(-7198)
    await claim(api, "a", "retention")


async def test_an_old_controller_schedules_nothing(jobs: JobsUnderTest) -> None:
    api = jobs.api
    epoch = await jobs.controller_epoch()
    with pytest.raises(FencedError):
        await api.schedule_jobs(epoch - 1, [JobSchedule("retention", 300_000)])
    assert await jobs.reports.list_jobs(10) == []


async def test_finished_jobs_are_kept_for_a_day(jobs: JobsUnderTest) -> None:
    api = jobs.api
    await api.enqueue_jobs([NewJob("merge", "x"), NewJob("merge", "y"), NewJob("merge", "z")])
    for _ in range(2):
        await api.finish_job((await claim(api)).token)
    assert await jobs.housekeeping.prune_jobs(10) == 0
    await jobs.move_clock(86_401)
    assert [await jobs.housekeeping.prune_jobs(1) for _ in range(3)] == [1, 1, 0]
    assert (await only_job(jobs)).key == "z"


async def test_jobs_that_no_worker_finishes_are_handed_over_and_start_again(jobs: JobsUnderTest) -> None:
    """By age, or by claims without success; not a leased one, and not while an unfinished job has the same key."""
    api = jobs.api
    await api.enqueue_jobs([NewJob("plan", ""), NewJob("large", "old", b"files"), NewJob("large", "held", priority=1)])
    await api.enqueue_jobs([NewJob("large", "twin"), NewJob("small", "twin")])
    planner, twin = await claim(api, "p", "plan"), await claim(api, "w", "small")
    await api.heartbeat_job(twin.token, 3_600_000, "")

    async def hand_over(after_ms: int, attempts: int = 99) -> int:
        return await api.hand_over_jobs("large", "small", after_ms=after_ms, attempts=attempts, by=planner.token)

    assert await hand_over(60_000) == 0
    await jobs.move_clock(61)
    held = await claim(api, "driver", "large")
    assert held.key == "held"
    assert await hand_over(60_000) == 1
    assert await hand_over(60_000) == 0
    old = await claim(api, "w", "small")
    assert (old.key, old.payload, old.attempts) == ("old", b"files", 1)

    await jobs.move_clock(61 + LEASE_MS / 1000 + 1)  # the driver crashed
    assert await hand_over(3_600_000, attempts=2) == 0
    assert await hand_over(3_600_000, attempts=1) == 1
    with pytest.raises(FencedError):
        await api.heartbeat_job(held.token, LEASE_MS, "back again")
    again = await claim(api, "w", "small")
    assert (again.key, again.attempts) == ("held", 1)
    assert again.token.epoch > held.token.epoch

    assert await hand_over(0) == 0
    await api.finish_job(twin.token)
    assert await hand_over(0) == 1
    await api.finish_job(planner.token)
    with pytest.raises(FencedError):
        await hand_over(0)


async def test_it_is_counted_how_long_jobs_wait_for_a_worker(jobs: JobsUnderTest) -> None:
    api = jobs.api
    await api.enqueue_jobs([NewJob("merge", "x"), NewJob("merge", "y", delay_ms=60_000), NewJob("sweep", "")])
    sweep = await claim(api, "a", "sweep")
    await jobs.move_clock(20)
    overdue = {(kind, state): overdue_ms for kind, state, _, overdue_ms in await jobs.reports.count_jobs()}
    assert 20_000 <= overdue.pop(("merge", JobState.WAITING)) < 50_000
    assert overdue == {("sweep", JobState.LEASED): 0}
    await jobs.move_clock(LEASE_MS / 1000 + 20)  # its holder crashed
    overdue = {(kind, state): overdue_ms for kind, state, _, overdue_ms in await jobs.reports.count_jobs()}
    assert 10_000 <= overdue["sweep", JobState.LEASED] < 50_000
    await api.heartbeat_job(sweep.token, LEASE_MS, "")
    await api.finish_job(sweep.token)
    await jobs.move_clock(3600)
    overdue = {(kind, state): overdue_ms for kind, state, _, overdue_ms in await jobs.reports.count_jobs()}
    assert overdue["sweep", JobState.DONE] == 0
