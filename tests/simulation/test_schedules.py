"""Idempotent appends under fire: thousands of schedules, each judged by the checker.

A failure names its seed and the command that replays it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.simulation.many import explain, simulate_all
from tests.simulation.seeds import make_plan
from tests.simulation.summary import SIMULATED
from tests.simulation.world import World

EVERYDAY, FIRST_SEEDS = 70, 1_000
EVERYDAY_PER_TEST = 35
FIRST_SLOW_SEED = 1_000_000
SLOW = 10_000
SLOW_PER_TEST = 200


@pytest.mark.requirement("W1", "W3", "W4", "W5", "W7", "W8", "W11")
@pytest.mark.parametrize("first", range(0, EVERYDAY, EVERYDAY_PER_TEST))
def test_nothing_is_lost_repeated_or_reordered(first: int, record_property: Callable[[str, object], None]) -> None:
    counts = simulate_all(range(first, first + EVERYDAY_PER_TEST))
    record_property(SIMULATED, dict(counts))
    assert min(counts["batches sent"], counts["neighbour answers"]) > EVERYDAY_PER_TEST


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        *range(EVERYDAY, FIRST_SEEDS, SLOW_PER_TEST),
        *range(FIRST_SLOW_SEED, FIRST_SLOW_SEED + SLOW, SLOW_PER_TEST),
    ],
)
def test_nothing_is_lost_in_many_more_schedules(first: int, record_property: Callable[[str, object], None]) -> None:
    record_property(SIMULATED, dict(simulate_all(range(first, first + SLOW_PER_TEST))))


@pytest.mark.skipif("HEADRACE_TEST_SEED" not in os.environ, reason="needs HEADRACE_TEST_SEED")
def test_replay() -> None:
    """One schedule, with its plan and its whole history on stdout (`-s`)."""
    world = World(make_plan(int(os.environ["HEADRACE_TEST_SEED"])))
    result = world.run()
    print(world.plan)
    for time, *event in world.history:
        print(f"{time:9.4f}", *event)
    assert not result.problems, explain(result)
