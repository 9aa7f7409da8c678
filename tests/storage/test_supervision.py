"""Background work that fails: started again or left out for a while, counted, and never in the way of other work."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from headrace.storage import supervision
from headrace.storage.errors import FencedError, UnavailableError
from headrace.storage.supervision import OUTAGE_PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX, Supervisor
from tests.manual_clock import ManualClock

HOUR = 3_600


class Work:
    """Fails as long as `error` is set."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.calls = 0

    async def __call__(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error


async def test_a_failing_step_is_left_out_for_longer_and_longer_and_holds_up_no_other(fake_clock: ManualClock) -> None:
    registry = CollectorRegistry()
    supervisor, bad, good = Supervisor(fake_clock, registry), Work(), Work()
    bad.error = KeyError("a bug")
    for _ in range(HOUR):
        await supervisor.attempt("bad", bad)
        assert await supervisor.attempt("good", good)
        await fake_clock.advance(1.0)
    assert good.calls == HOUR
    assert HOUR / PAUSE_SECONDS_MAX <= bad.calls <= HOUR / PAUSE_SECONDS_MAX + 10
    assert supervisor.problems() == {"bad": f"{bad.calls} failures: KeyError: 'a bug'"}
    failures = registry.get_sample_value("headrace_background_failures_total", {"work": "bad"})
    assert failures == registry.get_sample_value("headrace_background_failing", {"work": "bad"}) == bad.calls
    bad.error = None
    await fake_clock.advance(PAUSE_SECONDS_MAX)
    assert await supervisor.attempt("bad", bad)
    assert supervisor.problems() == {}
    assert registry.get_sample_value("headrace_background_failing", {"work": "bad"}) == 0


async def test_work_that_another_process_does_is_no_problem_of_this_one(fake_clock: ManualClock) -> None:
    registry = CollectorRegistry()
    supervisor, work = Supervisor(fake_clock, registry), Work()
    work.error = KeyError("a bug")
    for _ in range(3):
        await supervisor.attempt("work", work)
    supervisor.forget("work")
    supervisor.forget("never tried")
    assert supervisor.problems() == {}
    assert registry.get_sample_value("headrace_background_failing", {"work": "work"}) == 0
    work.error = None
    assert await supervisor.attempt("work", work), "without a pause"


async def test_the_first_failure_is_repeated_at_once_and_an_outage_soon(fake_clock: ManualClock) -> None:
    supervisor, work = Supervisor(fake_clock), Work()
    work.error = UnavailableError("no answer")
    for _ in range(2):
        assert not await supervisor.attempt("work", work)
    assert work.calls == 2
    for _ in range(HOUR):
        await supervisor.attempt("work", work)
        await fake_clock.advance(1.0)
    assert work.calls >= HOUR / (OUTAGE_PAUSE_SECONDS_MAX + 1)


async def test_a_caller_that_is_fenced_hears_of_it(fake_clock: ManualClock) -> None:
    supervisor, work = Supervisor(fake_clock), Work()
    work.error = FencedError("another controller")
    with pytest.raises(FencedError):
        await supervisor.attempt("work", work)
    assert supervisor.problems() == {}


async def test_a_loop_is_started_again_until_it_is_cancelled(fake_clock: ManualClock) -> None:
    supervisor = Supervisor(fake_clock)
    runs = 0

    async def loop() -> None:
        nonlocal runs
        runs += 1
        if runs < 4:
            raise ZeroDivisionError
        await fake_clock.sleep(HOUR)

    task = supervisor.keep("loop", loop)
    await fake_clock.advance(PAUSE_SECONDS_MAX)
    assert runs == 4
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_a_loop_that_fails_rarely_never_waits_for_long(fake_clock: ManualClock) -> None:
    supervisor, runs = Supervisor(fake_clock), 0

    async def loop() -> None:
        nonlocal runs
        runs += 1
        await fake_clock.sleep(PAUSE_SECONDS_MAX)
        raise ZeroDivisionError

    task = supervisor.keep("loop", loop)
    for _ in range(HOUR):
        await fake_clock.advance(1.0)
    task.cancel()
    assert runs >= HOUR / (PAUSE_SECONDS_MAX + 2) - 1


async def test_a_task_that_lost_its_cancellation_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As asyncio.wait_for before Python 3.12 loses one that comes together with its result."""
    monkeypatch.setattr(supervision, "CANCEL_AGAIN_SECONDS", 0.01)
    lost = 0

    async def forgetful() -> None:
        nonlocal lost
        while lost < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
        await asyncio.Event().wait()

    tasks = [asyncio.create_task(forgetful()), asyncio.create_task(asyncio.Event().wait())]
    await asyncio.sleep(0)
    await supervision.end_tasks()
    assert lost == 3
    assert all(task.cancelled() for task in tasks)
