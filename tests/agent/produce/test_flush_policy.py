"""Check when the open file is closed before its linger ends, and how often that may happen."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agent.produce.files import FlushReason
from headrace.agent.produce.flush_policy import FlushLimits, FlushPolicy, Situation

START = 100.0
LIMITS = FlushLimits(linger_s=0.1, idle_s=0.003, rate=10, burst=2, free_bytes=1_000)
OPEN = Situation(
    opened_at=START, size_bytes=10, last_byte_at=START, clients_wait=False, expects_more=False, congested=False
)


def _policy(**changes: float) -> FlushPolicy:
    return FlushPolicy(dataclasses.replace(LIMITS, **changes), START)  # type: ignore[arg-type]


def test_a_file_is_closed_once_no_byte_has_arrived_for_the_idle_time() -> None:
    policy = _policy()
    found = dataclasses.replace(OPEN, last_byte_at=START + 0.05)
    assert policy.judge(found, START + 0.05).again_at == pytest.approx(START + 0.053)
    assert policy.judge(found, START + 0.0529).reason is None
    assert policy.judge(found, START + 0.053).reason is FlushReason.IDLE


def test_a_file_is_closed_at_once_when_every_client_waits() -> None:
    found = dataclasses.replace(OPEN, clients_wait=True)
    assert _policy().judge(found, START).reason is FlushReason.CLIENTS_WAIT


def test_a_small_file_stays_open_for_the_idle_time_while_more_is_expected() -> None:
    policy = _policy(full_bytes=500)
    found = dataclasses.replace(OPEN, clients_wait=True, expects_more=True)
    assert policy.judge(found, START + 0.001).again_at == pytest.approx(START + 0.003)
    assert policy.judge(found, START + 0.003).reason is FlushReason.CLIENTS_WAIT
    assert policy.judge(dataclasses.replace(found, size_bytes=500), START).reason is FlushReason.CLIENTS_WAIT


@pytest.mark.requirement("W2")
def test_the_linger_always_counts_from_the_first_batch() -> None:
    found = dataclasses.replace(OPEN, last_byte_at=START + 0.1, congested=True)
    for policy in (_policy(), _policy(rate=0), _policy(burst=1)):
        assert policy.judge(found, START + 0.0999).reason is None
        assert policy.judge(found, START + 0.1).reason is FlushReason.LINGER


def test_no_file_is_closed_early_while_that_gains_nothing() -> None:
    policy = _policy()
    for found in (
        dataclasses.replace(OPEN, congested=True),
        dataclasses.replace(OPEN, congested=True, clients_wait=True, size_bytes=10_000),
    ):
        verdict = policy.judge(found, START + 0.01)
        assert verdict.reason is None
        assert START + 0.01 < verdict.again_at <= START + 0.1


def test_a_small_file_costs_a_token_and_a_large_one_none() -> None:
    policy = _policy()
    waits = dataclasses.replace(OPEN, clients_wait=True)
    for _ in range(LIMITS.burst):
        assert policy.judge(waits, START).reason is FlushReason.CLIENTS_WAIT
        policy.closed(FlushReason.CLIENTS_WAIT, waits.size_bytes, START)
    assert policy.judge(waits, START) == policy.judge(waits, START)
    assert policy.judge(waits, START).reason is None
    assert policy.judge(waits, START).again_at == pytest.approx(START + 0.1)
    large = dataclasses.replace(waits, size_bytes=LIMITS.free_bytes)
    for _ in range(10):
        assert policy.judge(large, START).reason is FlushReason.CLIENTS_WAIT
        policy.closed(FlushReason.CLIENTS_WAIT, large.size_bytes, START)
    later = dataclasses.replace(waits, opened_at=START + 0.099)
    assert policy.judge(later, START + 0.1).reason is FlushReason.CLIENTS_WAIT


def test_an_idle_file_leaves_the_last_tokens_to_clients_that_wait() -> None:
    policy = _policy()
    idle, waits = (dataclasses.replace(OPEN, last_byte_at=START - 1, clients_wait=each) for each in (False, True))
    assert policy.judge(idle, START).reason is FlushReason.IDLE
    policy.closed(FlushReason.IDLE, idle.size_bytes, START)
    assert policy.judge(idle, START).reason is None
    assert policy.judge(waits, START).reason is FlushReason.CLIENTS_WAIT


def test_early_flushes_slow_down_while_commits_are_slow() -> None:
    policy = _policy(rate_max=40, saved_max=1_000)
    waits = dataclasses.replace(OPEN, clients_wait=True, opened_at=START + 50)
    for slow, again_s in ((False, 1 / 40), (True, 1 / 20)):
        for _ in range(100 if slow else 0):
            policy.committed(0.1, START + 50)
        for _ in range(LIMITS.burst):
            policy.closed(FlushReason.CLIENTS_WAIT, 1, START + 50)
        again_at = policy.judge(waits, START + 50).again_at
        assert again_at == pytest.approx(START + 50 + again_s, abs=1e-5), "halved while commits are slow"


def test_the_early_flushes_of_the_last_minute_are_counted() -> None:
    policy = _policy()
    for reason in (FlushReason.IDLE, FlushReason.CLIENTS_WAIT, FlushReason.LINGER, FlushReason.SIZE):
        for size in (1, LIMITS.free_bytes):
            policy.closed(reason, size, START)
    assert policy.early_per_second(START) * 60 == 2


def test_early_flushes_can_be_switched_off() -> None:
    policy = _policy(rate=0)
    found = dataclasses.replace(OPEN, clients_wait=True, size_bytes=10_000)
    verdict = policy.judge(found, START + 0.01)
    assert (verdict.reason, verdict.again_at) == (None, pytest.approx(START + 0.1))


def test_without_a_budget_every_quiet_moment_closes_a_file() -> None:
    policy = _policy(rate=math.inf)
    for n in range(1_000):
        now = START + n * 1e-4
        assert policy.judge(dataclasses.replace(OPEN, opened_at=now, clients_wait=True), now).reason is not None
        policy.closed(FlushReason.IDLE, 1, now)


@pytest.mark.requirement("X8")
@given(
    gaps=st.lists(st.floats(0.0001, 0.2), min_size=1, max_size=150),
    sizes=st.lists(st.integers(1, 3_000), min_size=1, max_size=10),
    rate=st.sampled_from([0, 1, 10, 100]),
    burst=st.integers(1, 20),
    saving_s=st.sampled_from([0, 1, 100]),
    waits=st.booleans(),
)
def test_flushes_stay_within_their_bound(
    gaps: list[float], sizes: list[int], rate: int, burst: int, saving_s: int, waits: bool
) -> None:
    """flushes <= elapsed / linger + bytes / free bytes + the budget's, in every stretch of time.

    The budget's: at most rate * elapsed + what could be saved, and at most highest rate * elapsed + burst.
    """
    policy = _policy(rate=rate, burst=burst, saved_max=rate * saving_s, rate_max=2 * rate)
    now, flushes = START, [(START, 0)]
    for number, gap in enumerate(gaps):
        arrived, size = now + gap, sizes[number % len(sizes)]
        found = Situation(arrived, size, arrived, waits, expects_more=False, congested=False)
        now, verdict = arrived, policy.judge(found, arrived)
        while verdict.reason is None:
            assert verdict.again_at > now or verdict.again_at == pytest.approx(now)
            now = max(verdict.again_at, now)
            verdict = policy.judge(found, now)
        assert now <= arrived + LIMITS.linger_s + 1e-6
        policy.closed(verdict.reason, size, now)
        flushes.append((now, size))
    for first in range(1, len(flushes)):
        start, elapsed = flushes[first][0], now - flushes[first][0]
        counted = [size for at, size in flushes[first:] if at >= start]
        budget = min(rate * elapsed + max(rate * saving_s, burst), 2 * rate * elapsed + burst)
        allowed = elapsed / LIMITS.linger_s + sum(counted) / LIMITS.free_bytes + budget + 1
        assert len(counted) <= allowed + 1e-6
