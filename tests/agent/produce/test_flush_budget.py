"""Check how many early flushes the budget gives: what was earned and saved, and no faster than the highest rate."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agent.produce.flush_policy import (
    COMMITS_MIN,
    EARLY_PER_SECOND_S3,
    SLOT_S,
    SLOW_COMMIT_S,
    SLOW_STEPS,
    SPAN_S,
    TIME_EPSILON_S,
    CommitPressure,
    FlushBudget,
    FlushTokens,
    RecentCounts,
)
from headrace.agent.produce.pipeline import flush_limits
from headrace.config.settings import Settings

START = 1_000.0
HOUR = 3_600


class Flush(NamedTuple):
    at: float
    client_waits: bool


def _of(settings: Settings, now: float = START) -> FlushBudget:
    limits = flush_limits(settings)
    return FlushBudget(limits.rate, limits.rate_max, limits.burst, limits.saved_max, now)


def _flush(budget: FlushBudget, now: float, *, client_waits: bool = True) -> float:
    """Flush as soon as possible; the time."""
    at = budget.available_at(now, client_waits=client_waits)
    budget.take(at)
    return at


def _flushed(budget: FlushBudget, since: float, until: float) -> int:
    """Flush as often as possible."""
    count = 0
    while (since := budget.available_at(since, client_waits=True)) <= until:
        budget.take(since)
        count += 1
    return count


def _demand() -> st.SearchStrategy[list[tuple[float, bool, int]]]:
    """How long nothing happens, whether clients wait then, and how many files follow."""
    return st.lists(
        st.tuples(st.sampled_from([0.0, 0.003, 0.1, 1.0, 30.0, 3_000.0]), st.booleans(), st.integers(1, 40)),
        min_size=1,
        max_size=12,
    )


def _history(budget: FlushBudget, demand: list[tuple[float, bool, int]]) -> list[Flush]:
    now, flushes = START, []
    for pause, client_waits, files in demand:
        now += pause
        for _ in range(files):
            now = _flush(budget, now, client_waits=client_waits)
            flushes.append(Flush(now, client_waits))
    return flushes


@pytest.mark.requirement("X8")
@given(demand=_demand(), rate=st.sampled_from([1, 10]), burst=st.integers(1, 20), saved_s=st.sampled_from([0, 5, HOUR]))
def test_early_flushes_are_never_more_than_what_was_saved_and_earned(
    demand: list[tuple[float, bool, int]], rate: int, burst: int, saved_s: int
) -> None:
    """In every stretch of time, and from the start at most burst + earned."""
    saved_max = max(rate * saved_s, burst)
    flushes = _history(FlushBudget(rate, math.inf, burst, rate * saved_s, START), demand)
    for first, (start, _) in enumerate(flushes):
        saved = min(burst + rate * (start - START), saved_max)
        for count, (end, _) in enumerate(flushes[first:], start=1):
            assert count <= saved + rate * (end - start) + 1e-3, "more than saved and earned"


@pytest.mark.requirement("X8")
@given(demand=_demand(), rate=st.sampled_from([1, 10]), rate_max=st.sampled_from([10, 50]), burst=st.integers(1, 20))
def test_early_flushes_are_never_faster_than_the_highest_rate(
    demand: list[tuple[float, bool, int]], rate: int, rate_max: int, burst: int
) -> None:
    """In every stretch of time, however many were saved before."""
    flushes = _history(FlushBudget(rate, rate_max, burst, rate * HOUR, START), demand)
    for first, (start, _) in enumerate(flushes):
        for count, (end, _) in enumerate(flushes[first:], start=1):
            assert count <= burst + rate_max * (end - start) + 1e-3, "faster than the highest rate"


@pytest.mark.requirement("X8")
@given(demand=_demand(), rate=st.sampled_from([1, 10]), burst=st.integers(2, 20))
def test_idle_files_leave_the_reserve_to_clients_that_wait(
    demand: list[tuple[float, bool, int]], rate: int, burst: int
) -> None:
    budget, now = FlushBudget(rate, 50, burst, rate * HOUR, START), START
    for pause, client_waits, files in demand:
        now += pause
        for _ in range(files):
            waits = budget.available_at(now, client_waits=True)
            assert waits <= budget.available_at(now, client_waits=False)
            now = _flush(budget, now, client_waits=client_waits)
            if not client_waits:
                assert budget.saved(now) >= budget.reserve - 1e-3, "an idle file took the reserve"


@pytest.mark.requirement("X8")
@given(used=st.integers(0, 300), pause_ms=st.integers(0, 8 * HOUR * 1_000), rate=st.sampled_from([1, 7, 10]))
def test_what_is_used_is_earned_back_up_to_what_can_be_saved(used: int, pause_ms: int, rate: int) -> None:
    budget, now = FlushBudget(rate, math.inf, 20, rate * HOUR, START), START
    for _ in range(used):
        now = _flush(budget, now)
    before = budget.saved(now)
    earned = budget.saved(now + pause_ms / 1_000) - before
    assert earned == pytest.approx(min(rate * pause_ms / 1_000, rate * HOUR - before), abs=1e-3), "earned back"


def test_nothing_is_lost_by_looking_often() -> None:
    """A year of looks at odd times: floats would drift."""
    often, once = (FlushBudget(3, math.inf, 1, 10_000_000, START) for _ in range(2))
    for look in range(100_000):
        often.saved(START + look * 0.0137)
    assert often.saved(START + 1_400) == once.saved(START + 1_400)


def test_with_the_defaults_on_s3_interactive_use_is_always_fast() -> None:
    """Five a second for an hour, after a start with 20; and 50 a second for a quarter of an hour after a quiet hour."""
    budget = _of(Settings(bucket="s3://b/p", metastore_url="postgresql://x"))
    for number in range(5 * HOUR):
        at = START + number / 5
        assert _flush(budget, at) == at
    hour_later = START + 3 * HOUR
    assert budget.saved(hour_later) == EARLY_PER_SECOND_S3 * HOUR
    assert _flushed(budget, hour_later, hour_later + 900) == 50 * 900
    assert _flushed(budget, hour_later + 901, hour_later + 1_901) == pytest.approx(10 * 1_000, abs=20), "used up"


@pytest.mark.requirement("X8")
def test_a_month_has_no_more_than_it_earns_under_any_load() -> None:
    budget, month = FlushBudget(1, 50, 20, HOUR, START), 30 * 24 * HOUR
    assert _flushed(budget, START, START + month // 30) <= month // 30 + 20 + 1


def test_unlimited_flushes_have_neither_limit() -> None:
    budget = _of(Settings())
    assert (budget.saved(START), budget.rate_limit) == (math.inf, math.inf)
    assert all(_flush(budget, START, client_waits=False) == START for _ in range(1_000))
    budget.slow_down(SLOW_STEPS, START)
    assert _flush(budget, START) == START


def test_settings_become_limits() -> None:
    found = flush_limits(
        Settings(
            flush_early_per_second=100, flush_early_burst=7, flush_early_saving_ms=1_500, flush_early_per_second_max=50
        )
    )
    assert (found.rate, found.burst, found.saved_max, found.rate_max) == (100, 7, 150, 100)


def _pressure(*commits: tuple[int, float], at: float = START) -> CommitPressure:
    pressure = CommitPressure()
    for count, seconds in commits:
        for _ in range(count):
            pressure.committed(seconds, at)
    return pressure


def test_the_p95_of_the_last_minutes_commits_decides_the_pace() -> None:
    fast, slow = SLOW_COMMIT_S, SLOW_COMMIT_S * 1.01
    assert _pressure((95, fast), (5, 10.0)).steps(START) == 0
    assert _pressure((94, fast), (6, slow)).steps(START) == 1
    assert _pressure((90, fast), (10, SLOW_COMMIT_S * 4)).steps(START) == 2
    assert _pressure((90, fast), (10, 60.0)).steps(START) == SLOW_STEPS
    assert _pressure((COMMITS_MIN - 1, 10.0)).steps(START) == 0, "too few to say"
    slow_once = _pressure((100, slow))
    assert slow_once.steps(START + SPAN_S) == 1
    assert slow_once.steps(START + SPAN_S + SLOT_S) == 0, "forgotten"


@pytest.mark.requirement("X8")
def test_slow_commits_halve_the_pace_but_never_below_what_is_earned() -> None:
    budget = FlushBudget(10, 50, 20, 36_000, START)
    now = START + HOUR
    for steps, rate in ((0, 50), (1, 25), (2, 12), (3, 10)):
        budget.slow_down(steps, now)
        now += 10
        assert _flushed(budget, now, now + 10) == pytest.approx(rate * 10 + 20, abs=1), "rate limit"
        now += 10
    budget.slow_down(0, now)
    assert budget.rate_limit == 50


def test_a_timer_that_fires_a_little_early_takes_nothing_that_was_not_earned() -> None:
    budget, now = FlushBudget(10, math.inf, 1, 0, START), START
    for _ in range(10_000):
        now = budget.available_at(now, client_waits=True) - TIME_EPSILON_S / 2
        budget.take(now)
    assert now - START >= 9_999 / 10 - TIME_EPSILON_S


@given(
    gaps=st.lists(st.integers(0, 40), min_size=1, max_size=40),
    kinds=st.lists(st.integers(0, 2), min_size=1, max_size=5),
)
def test_counts_are_remembered_for_a_minute_and_at_most_a_slot_longer(gaps: list[int], kinds: list[int]) -> None:
    counts, now, events = RecentCounts(3), 0, []
    for number, gap in enumerate(gaps):
        now += gap
        events.append((now, kinds[number % len(kinds)]))
        counts.add(events[-1][1], now)
        totals = counts.totals(now)
        for kind in range(3):
            times = [at for at, each in events if each == kind]
            assert sum(at > now - SPAN_S for at in times) <= totals[kind]
            assert totals[kind] <= sum(at > now - SPAN_S - SLOT_S for at in times)


def test_a_steady_rate_is_shown_as_it_is() -> None:
    counts = RecentCounts()
    for number in range(2_000):
        counts.add(0, number / 10)
    assert counts.per_second(199.9) == pytest.approx(10, rel=0.01)


def test_reading_a_rate_or_savings_changes_nothing() -> None:
    counts, tokens = RecentCounts(), FlushTokens(10, 100, 5, START)
    counts.add(0, START)
    for ahead in (0, 1000):  # a page of metrics is made on another thread, with a later time
        assert counts.totals(START + ahead) == [0 if ahead else 1]
        assert tokens.held(START + ahead) == (100 if ahead else 5)
    assert counts.totals(START) == [1]
    assert tokens.held(START) == 5
