"""Jobs and pins: one holder at a time; leases that run out, answers that are lost, a clock that jumps."""

from __future__ import annotations

import uuid

import pytest

from metastore.jobs import Job, JobSchedule, JobState, JobStatus, JobToken, NewJob
from metastore.postgres.store import PostgresMetastore
from storage.errors import FencedError, InvalidError
from tests.metastore.sessions import move_time, rows, session

LEASE_MS = 30_000


async def claim(store: PostgresMetastore, worker: str = "a", *kinds: str) -> Job:
    """The job that there must be."""
    job = await store.claim_job(worker, kinds or ("merge",), LEASE_MS)
    assert job is not None
    return job


async def only_job(store: PostgresMetastore) -> JobStatus:
    """The only job that is listed."""
    (status,) = await store.list_jobs(10)
    return status


async def move_clock(url: str, total_seconds: float) -> None:
    """Let the metastore's clock be this far ahead from now on."""
    async with session(url) as connection:
        await move_time(connection, total_seconds)


async def controller_epoch(store: PostgresMetastore) -> int:
    return (await store.hold_controller_lease(0, uuid.UUID(int=1), 60_000)).controller_epoch


async def test_a_job_is_enqueued_once_claimed_once_and_done(metastore: PostgresMetastore) -> None:
    assert await metastore.enqueue_jobs([NewJob("merge", "x", b"plan"), NewJob("merge", "y")]) == [True, True]
    assert await metastore.enqueue_jobs([NewJob("merge", "y"), NewJob("sweep", "y")]) == [False, True]
    first = await claim(metastore)
    assert first == Job(first.token, "merge", "x", b"plan", 1, "")
    assert (await claim(metastore, "b")).key == "y"
    assert await metastore.claim_job("c", ["merge"], LEASE_MS) is None
    assert await metastore.enqueue_jobs([NewJob("merge", "x")]) == [False]
    await metastore.finish_job(first.token)
    await metastore.finish_job(first.token)  # its answer was lost
    assert await metastore.enqueue_jobs([NewJob("merge", "x")]) == [True]
    counted = {(kind, state): jobs for kind, state, jobs in await metastore.count_jobs()}
    assert counted == {
        ("merge", JobState.WAITING): 1,
        ("merge", JobState.LEASED): 1,
        ("merge", JobState.DONE): 1,
        ("sweep", JobState.WAITING): 1,
    }


async def test_the_more_urgent_job_comes_first_then_the_one_that_was_due_first(metastore: PostgresMetastore) -> None:
    await metastore.enqueue_jobs([NewJob("merge", "late", delay_ms=60_000), NewJob("merge", "plain")])
    await metastore.enqueue_jobs([NewJob("merge", "plain too"), NewJob("merge", "urgent", priority=1)])
    assert [(await claim(metastore)).key for _ in range(3)] == ["urgent", "plain", "plain too"]
    assert await metastore.claim_job("a", ["merge"], LEASE_MS) is None


async def test_a_worker_that_lost_its_lease_changes_nothing(metastore: PostgresMetastore, metastore_url: str) -> None:
    await metastore.enqueue_jobs([NewJob("merge", "x")])
    old = await claim(metastore, "old")
    await metastore.heartbeat_job(old.token, LEASE_MS, "half way")
    await move_clock(metastore_url, LEASE_MS / 1000 + 1)
    new = await claim(metastore, "new")
    assert (new.token, new.attempts, new.progress) == (JobToken(old.token.job_id, old.token.epoch + 1), 2, "half way")
    before = await only_job(metastore)
    for act in (
        metastore.heartbeat_job(old.token, LEASE_MS, "still me"),
        metastore.finish_job(old.token),
        metastore.fail_job(old.token, "no", 0),
        metastore.release_job(old.token),
        metastore.enqueue_jobs([NewJob("merge", "z")], by=old.token),
    ):
        with pytest.raises(FencedError):
            await act
    assert await only_job(metastore) == before
    assert await metastore.enqueue_jobs([NewJob("merge", "z")], by=new.token) == [True]


async def test_a_lease_that_ran_out_holds_until_somebody_claims_the_job(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    await metastore.enqueue_jobs([NewJob("merge", "x")])
    job = await claim(metastore)
    await move_clock(metastore_url, 3600)
    await metastore.heartbeat_job(job.token, LEASE_MS, "")
    assert await metastore.claim_job("b", ["merge"], LEASE_MS) is None
    await metastore.finish_job(job.token)
    assert (await only_job(metastore)).state is JobState.DONE


async def test_nobody_claims_a_job_while_an_action_of_its_holder_runs(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    await metastore.enqueue_jobs([NewJob("merge", "x")])
    job = await claim(metastore)
    await move_clock(metastore_url, 3600)
    async with session(metastore_url) as action:
        async with action.transaction():
            await rows(action, "SELECT assert_job(%s, %s)", *job.token)
            assert await metastore.claim_job("b", ["merge"], LEASE_MS) is None
        assert await metastore.claim_job("b", ["merge"], LEASE_MS) is not None


async def test_a_job_that_fails_waits_and_is_given_up_in_the_end(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    await metastore.enqueue_jobs([NewJob("merge", "x", max_attempts=2)])
    job = await claim(metastore)
    assert await metastore.fail_job(job.token, "bucket away", 5_000) is JobState.WAITING
    assert await metastore.fail_job(job.token, "bucket away", 5_000) is JobState.WAITING  # its answer was lost
    assert await metastore.claim_job("a", ["merge"], LEASE_MS) is None
    await move_clock(metastore_url, 6)
    job = await claim(metastore)
    assert await metastore.fail_job(job.token, "bucket still away", 5_000) is JobState.GIVEN_UP
    status = await only_job(metastore)
    assert (status.state, status.attempts, status.last_error) == (JobState.GIVEN_UP, 2, "bucket still away")
    assert await metastore.enqueue_jobs([NewJob("merge", "x")]) == [True]


async def test_work_that_kills_its_worker_is_given_up(metastore: PostgresMetastore, metastore_url: str) -> None:
    await metastore.enqueue_jobs([NewJob("merge", "x", max_attempts=2)])
    for attempt in (1, 2):
        await claim(metastore)
        await move_clock(metastore_url, attempt * 60)
    assert await metastore.claim_job("a", ["merge"], LEASE_MS) is None
    status = await only_job(metastore)
    assert (status.state, status.last_error) == (JobState.GIVEN_UP, "its leases ran out")


async def test_without_a_retry_a_job_is_given_up_at_once(metastore: PostgresMetastore) -> None:
    await metastore.enqueue_jobs([NewJob("merge", "x")])
    assert await metastore.fail_job((await claim(metastore)).token, "nonsense", None) is JobState.GIVEN_UP


async def test_a_released_job_goes_on_elsewhere_and_the_lease_was_no_attempt(metastore: PostgresMetastore) -> None:
    await metastore.enqueue_jobs([NewJob("merge", "x", max_attempts=1)])
    job = await claim(metastore)
    await metastore.heartbeat_job(job.token, LEASE_MS, "3 of 4")
    await metastore.release_job(job.token)
    await metastore.release_job(job.token)
    again = await claim(metastore, "b")
    assert (again.attempts, again.progress) == (1, "3 of 4")


async def test_periodic_jobs_come_again_one_period_after_they_ended(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    epoch = await controller_epoch(metastore)
    schedule = [JobSchedule("retention", 300_000)]
    await metastore.schedule_jobs(epoch, schedule)
    job = await claim(metastore, "a", "retention")
    await metastore.schedule_jobs(epoch, schedule)
    await metastore.finish_job(job.token)
    await metastore.schedule_jobs(epoch, schedule)
    assert await metastore.claim_job("a", ["retention"], LEASE_MS) is None
    await move_clock(metastore_url, 301)
    again = await claim(metastore, "a", "retention")
    assert (again.token.job_id, again.attempts) == (job.token.job_id, 1)
    assert await metastore.fail_job(again.token, "broken", None) is JobState.WAITING  # never given up
    assert (await only_job(metastore)).last_error == "broken"


async def test_a_shorter_period_and_a_clock_that_went_back_do_not_leave_a_job_waiting(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    epoch = await controller_epoch(metastore)
    await metastore.schedule_jobs(epoch, [JobSchedule("retention", 300_000)])
    await metastore.finish_job((await claim(metastore, "a", "retention")).token)
    await metastore.schedule_jobs(epoch, [JobSchedule("retention", 1_000)])
    await move_clock(metastore_url, 2)
    await metastore.finish_job((await claim(metastore, "a", "retention")).token)
    await move_clock(metastore_url, -7200)
    epoch = await controller_epoch(metastore)
    await metastore.schedule_jobs(epoch, [JobSchedule("retention", 1_000)])
    await move_clock(metastore_url, -7198)
    await claim(metastore, "a", "retention")


async def test_an_old_controller_schedules_nothing(metastore: PostgresMetastore) -> None:
    epoch = await controller_epoch(metastore)
    with pytest.raises(FencedError):
        await metastore.schedule_jobs(epoch - 1, [JobSchedule("retention", 300_000)])
    assert await metastore.list_jobs(10) == []


async def test_finished_jobs_are_kept_for_a_day(metastore: PostgresMetastore, metastore_url: str) -> None:
    await metastore.enqueue_jobs([NewJob("merge", "x"), NewJob("merge", "y"), NewJob("merge", "z")])
    for _ in range(2):
        await metastore.finish_job((await claim(metastore)).token)
    assert await metastore.prune_jobs(10) == 0
    await move_clock(metastore_url, 86_401)
    assert [await metastore.prune_jobs(1) for _ in range(3)] == [1, 1, 0]
    assert (await only_job(metastore)).key == "z"


async def test_a_pin_protects_what_died_since_it_was_taken(metastore: PostgresMetastore, metastore_url: str) -> None:
    pin = uuid.uuid4()
    async with session(metastore_url) as raw:

        async def seconds_protected() -> float:
            """How far back; 0 when nothing is."""
            query = (
                "SELECT CASE WHEN h = 'infinity' THEN 0 ELSE extract(epoch FROM wall_time() - h) END::float"
                " FROM pin_horizon() AS h"
            )
            return float((await rows(raw, query))[0][0])

        assert await seconds_protected() == 0
        await metastore.pin_reads(pin, "export", 30_000)
        assert await seconds_protected() >= 60  # what a statement that still runs may have killed
        await move_clock(metastore_url, 20)
        await metastore.renew_pin(pin, 30_000)
        await metastore.pin_reads(pin, "export", 30_000)
        await move_clock(metastore_url, 40)
        assert await seconds_protected() >= 100
        await move_clock(metastore_url, 80)
        with pytest.raises(FencedError):
            await metastore.renew_pin(pin, 30_000)
        assert await seconds_protected() == 0
        await metastore.pin_reads(pin, "export", 30_000)
        await metastore.unpin_reads(pin)
        await metastore.unpin_reads(pin)
        assert await seconds_protected() == 0


async def test_a_job_without_sense_is_refused(metastore: PostgresMetastore) -> None:
    with pytest.raises(InvalidError):
        await metastore.enqueue_jobs([NewJob("merge", "x", priority=1 << 20)])
