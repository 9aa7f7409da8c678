"""Schedules in which most agents follow only a part of the feed, others all of it; half of them with failovers.

Readers see all that was acknowledged, in order; what a failover lost is listed as completely as if all agents followed
everything. A failure names its seed and the command that replays it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.planted import PlantedBugs, Trial
from tests.simulation.bug import Bug
from tests.simulation.bugs_parts import BUGS
from tests.simulation.many import simulate_all
from tests.simulation.plan import FIRST_SEED_WITH_PARTS, make_plan
from tests.simulation.planting import look_for
from tests.simulation.summary import SIMULATED

EVERYDAY = 16
EVERYDAY_PER_TEST = 16
SLOW = 1_000
SLOW_PER_TEST = 100


@pytest.mark.requirement("W1", "W5", "X4")
@pytest.mark.parametrize("first", range(0, EVERYDAY, EVERYDAY_PER_TEST))
def test_parts_of_the_feed_keep_the_promises(first: int, record_property: Callable[[str, object], None]) -> None:
    start = FIRST_SEED_WITH_PARTS + first
    counts = simulate_all(range(start, start + EVERYDAY_PER_TEST))
    record_property(SIMULATED, dict(counts))
    assert counts["losses listed"]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(EVERYDAY, EVERYDAY + SLOW, SLOW_PER_TEST))
def test_parts_of_the_feed_in_many_more_schedules(first: int, record_property: Callable[[str, object], None]) -> None:
    start = FIRST_SEED_WITH_PARTS + first
    record_property(SIMULATED, dict(simulate_all(range(start, start + SLOW_PER_TEST))))


PLANTED = PlantedBugs("simulation of parts of the feed", first=FIRST_SEED_WITH_PARTS, most=10_000)


@PLANTED.cases(BUGS, lambda bug: bug.name)
def test_a_deliberate_bug_of_partial_following_is_caught(bug: Bug, trial: Trial) -> None:
    look_for(bug, trial)


def test_there_are_agents_of_both_kinds() -> None:
    plans = [make_plan(FIRST_SEED_WITH_PARTS + seed) for seed in range(40)]
    assert any(None in plan.follows and any(plan.follows) for plan in plans)
    assert any(plan.compares_lists for plan in plans)
    assert not make_plan(FIRST_SEED_WITH_PARTS - 1).follows
