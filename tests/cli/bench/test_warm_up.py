"""When a target is warm."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.cli.bench.report import warm_up_line
from headrace.cli.bench.run import STEADY_PATIENCE_SECONDS, WarmUp, is_steady, warm_up
from tests.manual_clock import ManualClock


@pytest.mark.parametrize(
    ("rates", "steady"),
    [
        ([], False),
        ([10], False),
        ([10, 10], True),
        ([10, 11], True),
        ([11, 10], True),
        ([10, 11.2], False),
        ([9, 10], False),
        ([10, 10, 20], False),
        ([10, 20, 21], True),
    ],
)
def test_two_windows_in_a_row_that_differ_by_less_than_a_tenth_are_steady(rates: Sequence[float], steady: bool) -> None:
    assert is_steady(rates) is steady


async def _warm_up(rates: Sequence[float], seconds: float, *, once: bool = False) -> WarmUp:
    clock, left = ManualClock(), iter(rates)

    async def window() -> float:
        clock.jump(seconds)
        return next(left)

    return await warm_up(window, clock, once=once)


async def test_windows_are_repeated_until_throughput_is_steady() -> None:
    done = await _warm_up([10, 20, 30, 31, 90], 2)
    assert done == WarmUp(mb_per_s=[10, 20, 30, 31], seconds=8, steady=True)
    assert warm_up_line("kafka", done) == "warm-up of kafka: steady after 8 s: 10, 20, 30, 31 MB/s"


async def test_patience_ends_the_warm_up_of_a_target_that_is_never_steady() -> None:
    done = await _warm_up([10, 20] * 10, STEADY_PATIENCE_SECONDS / 4)
    assert done == WarmUp(mb_per_s=[10, 20, 10, 20], seconds=STEADY_PATIENCE_SECONDS, steady=False)
    assert warm_up_line("kafka", done) == "warm-up of kafka: not steady yet after 60 s: 10, 20, 10, 20 MB/s"


async def test_one_window_is_not_judged() -> None:
    done = await _warm_up([10, 20], 2, once=True)
    assert done == WarmUp(mb_per_s=[10], seconds=2, steady=None)
    assert warm_up_line("dev", done) == "warm-up of dev: one window, not judged after 2 s: 10 MB/s"
