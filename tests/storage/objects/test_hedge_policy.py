"""When a PUT is hedged: after the p95 of its size class, at most so many, and never while S3 is short of anything."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.storage.objects.hedging import (
    BURST,
    LEAST_DELAY_S,
    SAMPLE_AGE_S,
    SAMPLES_MAX,
    SAMPLES_MIN,
    SIZE_CLASSES,
    THROTTLED_S,
    HedgePolicy,
)

START = 1_000.0
KIB = 1024
LARGEST = SIZE_CLASSES[-1]


def taught(*seconds: float, size: int = KIB, percent: int = 100) -> HedgePolicy:
    """A policy that saw PUTs of these durations, one after the other."""
    policy = HedgePolicy(percent, parallelism=8)
    for each in seconds:
        put(policy, each, size=size)
    return policy


def put(policy: HedgePolicy, seconds: float | None, *, size: int = KIB, now: float = START) -> float | None:
    """One PUT; when its hedge was due."""
    delay = policy.begin(size, now)
    policy.end(size, seconds, now)
    return delay


def test_the_p95_of_the_last_puts_is_when_a_hedge_is_due() -> None:
    policy = taught(*[0.04] * 95, *[0.5] * 5)
    assert put(policy, 0.5) == 0.04, "95 of 100 took at most this"
    assert put(policy, 0.5) == 0.5, "95 of 101 do no longer"
    for _ in range(SAMPLES_MAX):
        put(policy, 0.02)
    assert put(policy, 0.02) == 0.02, "older ones do not count"


def test_few_puts_and_old_ones_say_nothing() -> None:
    policy = taught(*[0.04] * (SAMPLES_MIN - 1))
    assert put(policy, 0.04) is None
    assert put(policy, None) == 0.04
    assert put(policy, None, now=START + SAMPLE_AGE_S) == 0.04
    assert put(policy, None, now=START + SAMPLE_AGE_S + 1) is None


def test_failed_puts_say_nothing_about_the_time_that_a_put_takes() -> None:
    policy = taught(*[0.04] * SAMPLES_MIN)
    for _ in range(SAMPLES_MAX):
        put(policy, None)
    assert put(policy, None) == 0.04


def test_a_store_that_answers_at_once_has_no_tail_worth_a_request() -> None:
    assert put(taught(*[0.001] * 100), 0.001) == LEAST_DELAY_S


@pytest.mark.parametrize("size", SIZE_CLASSES[1:])
def test_size_classes_do_not_mix(size: int) -> None:
    policy = taught(*[0.04] * SAMPLES_MIN, size=size)
    assert put(policy, None, size=size) == 0.04
    assert put(policy, None, size=size + 1) is None
    assert put(policy, None, size=size // 4) is None


def test_files_above_the_largest_class_are_not_hedged_and_earn_nothing() -> None:
    policy = taught(*[0.04] * 1_000, size=LARGEST + 1)
    assert put(policy, 0.04, size=LARGEST + 1) is None
    assert not policy.may_hedge(START)


def test_no_hedge_while_s3_throttles() -> None:
    policy = taught(*[0.04] * 100)
    policy.throttled(START)
    assert not policy.may_hedge(START + THROTTLED_S - 0.001), "hedged while S3 throttles"
    assert policy.may_hedge(START + THROTTLED_S)


def test_no_hedge_while_all_places_for_uploads_are_taken() -> None:
    policy = taught(*[0.04] * 100)
    for _ in range(8):
        policy.begin(KIB, START)
    assert not policy.may_hedge(START), "hedged while uploads queue"
    policy.end(KIB, 0.04, START)
    assert policy.may_hedge(START)
    for _ in range(7):
        policy.end(KIB, None, START)
    for _ in range(8):
        policy.begin(LARGEST + 1, START)
    assert not policy.may_hedge(START), "large files take places, too"


class Load(NamedTuple):
    percent: int
    slow: list[bool]


def _hedges(policy: HedgePolicy, slow: list[bool]) -> list[bool]:
    """Return whether each PUT was hedged: slow ones ask."""
    hedged = []
    for is_slow in slow:
        policy.begin(KIB, START)
        hedged.append(is_slow and policy.may_hedge(START))
        policy.end(KIB, 0.04, START)
    return hedged


@example(percent=5, slow=[(True, 400)])  # these two find each planted bug of this proof
@example(percent=5, slow=[(False, 400), (True, 400)])
@given(
    percent=st.integers(1, 100),
    slow=st.lists(st.tuples(st.booleans(), st.integers(1, 400)), min_size=1, max_size=12),
)
def test_no_more_puts_are_hedged_than_the_share_of_all(percent: int, slow: list[tuple[bool, int]]) -> None:
    """Of any first n PUTs at most the share, of any n in a row at most BURST more."""
    hedged = _hedges(HedgePolicy(percent, 8), [is_slow for is_slow, count in slow for _ in range(count)])
    hedges, ends = 0, [0]
    for number, each in enumerate(hedged, start=1):
        hedges += each
        ends.append(hedges)
        assert hedges * 100 <= percent * number, "more hedges than the share"
    for first in range(0, len(ends), 97):
        for last in range(first, len(ends), 89):
            assert ends[last] - ends[first] <= BURST + (last - first) * percent / 100 + 1, "saved without a limit"


def test_under_a_log_normal_tail_five_of_a_hundred_are_hedged_after_the_real_p95() -> None:
    """Hedged PUTs count with the time of the quicker request: the p95 does not sink although slow ones are cut."""
    rng, policy, delays = random.Random(1), HedgePolicy(5, 8), []
    hedges = 0
    for number in range(20_000):
        now = START + number / 10
        delay = policy.begin(KIB, now)
        seconds = 0.045 * rng.lognormvariate(0, 0.5)
        if delay is not None and seconds > delay and policy.may_hedge(now + delay):
            hedges += 1
            seconds = min(seconds, delay + 0.045 * rng.lognormvariate(0, 0.5))
        policy.end(KIB, seconds, now + seconds)
        delays.append(delay or 0.0)
    tail = sorted(delays[1_000:])
    assert 0.085 < tail[len(tail) // 2] < 0.125, "the p95 is 102 ms"
    assert 0.03 < hedges / 20_000 <= 0.05
