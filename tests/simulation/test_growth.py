"""Schedules in which the commit shards are doubled while agents commit and clients read; half of them with failovers.

Polls are late, cut short or lost, agents are stopped in between, a standby may lack the growth. Readers see all that
was acknowledged, in order. A failure names its seed and the command that replays it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.planted import PlantedBugs, Trial
from tests.simulation.bug import Bug
from tests.simulation.bugs_growth import BUGS
from tests.simulation.faults import Fault
from tests.simulation.many import simulate_all
from tests.simulation.plan import FIRST_SEED_WITH_GROWTH, make_plan
from tests.simulation.planting import look_for
from tests.simulation.summary import SIMULATED

EVERYDAY = 20
EVERYDAY_PER_TEST = 20
SLOW = 1_000
SLOW_PER_TEST = 100


@pytest.mark.requirement("W1", "W5")
@pytest.mark.parametrize("first", range(0, EVERYDAY, EVERYDAY_PER_TEST))
def test_growth_keeps_the_promises(first: int, record_property: Callable[[str, object], None]) -> None:
    start = FIRST_SEED_WITH_GROWTH + first
    counts = simulate_all(range(start, start + EVERYDAY_PER_TEST))
    record_property(SIMULATED, dict(counts))
    assert counts[Fault.SHARDS_GROWN.value] > EVERYDAY_PER_TEST


@pytest.mark.slow
@pytest.mark.parametrize("first", range(EVERYDAY, EVERYDAY + SLOW, SLOW_PER_TEST))
def test_growth_in_many_more_schedules(first: int, record_property: Callable[[str, object], None]) -> None:
    start = FIRST_SEED_WITH_GROWTH + first
    record_property(SIMULATED, dict(simulate_all(range(start, start + SLOW_PER_TEST))))


PLANTED = PlantedBugs("simulation of growth", first=FIRST_SEED_WITH_GROWTH, most=10_000)


@PLANTED.cases(BUGS, lambda bug: bug.name)
def test_a_deliberate_bug_of_growth_is_caught(bug: Bug, trial: Trial) -> None:
    look_for(bug, trial)


def test_other_schedules_have_no_growth() -> None:
    assert Fault.SHARDS_GROWN not in make_plan(FIRST_SEED_WITH_GROWTH - 1).blows
    assert Fault.SHARDS_GROWN in make_plan(FIRST_SEED_WITH_GROWTH).blows
