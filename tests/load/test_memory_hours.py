"""The judge of load.workloads.memory_hours: what counts as flat, and its samples of a process."""

from __future__ import annotations

from load.workloads.memory_hours.verdict import after_merges, judge

MIB = 1 << 20


def test_memory_that_merges_raise_and_that_falls_again_is_flat() -> None:
    quarter = [250 * MIB] * 20 + [390 * MIB] + [260 * MIB] * 4
    verdict = judge([200 * MIB] * 25 + quarter * 3)
    assert verdict.is_flat
    assert (verdict.level_growth, verdict.peak_growth) == (0, 0)
    assert [part.least // MIB for part in verdict.quarters] == [200, 250, 250, 250]


def test_steps_and_a_slow_rise_are_not_flat() -> None:
    steps = [size * MIB for size in (224, 268, 290, 317, 325, 391, 391, 391)]
    assert not judge(steps).is_flat
    assert not judge([(200 + n / 10) * MIB for n in range(400)]).is_flat
    assert not judge([200 * MIB] * 30 + [211 * MIB] * 10).is_flat, "only the last quarter"
    assert not judge([200 * MIB] * 39 + [300 * MIB]).is_flat, "only a peak"


def test_what_each_merge_leaves_is_the_least_until_the_next() -> None:
    assert after_merges([0, 0, 1, 1, 2, 2], [5, 4, 9, 6, 9, 7]) == [(0, 4), (1, 6), (2, 7)]
