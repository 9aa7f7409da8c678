"""Schedules in which the metastore forgets its last commits, is followed by a standby that is behind, or exists twice.

What is acknowledged in the present life is in the log, nothing is there twice, no producer id and no offset of a leader
epoch is handed out twice; every agent serves the present log. A failure names its seed and the command that replays it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.planted import PlantedBugs, Trial
from tests.simulation.bug import Bug
from tests.simulation.bugs_lives import BUGS
from tests.simulation.faults import Fault
from tests.simulation.many import simulate_all
from tests.simulation.plan import FAILOVERS, FIRST_SEED_WITH_FAILOVERS, make_plan
from tests.simulation.planting import look_for
from tests.simulation.summary import SIMULATED

EVERYDAY = 25
EVERYDAY_PER_TEST = 25
SLOW = 1_500
SLOW_PER_TEST = 100


@pytest.mark.requirement("W1", "W3", "W7")
@pytest.mark.parametrize("first", range(0, EVERYDAY, EVERYDAY_PER_TEST))
def test_a_new_life_keeps_its_promises(first: int, record_property: Callable[[str, object], None]) -> None:
    start = FIRST_SEED_WITH_FAILOVERS + first
    counts = simulate_all(range(start, start + EVERYDAY_PER_TEST))
    record_property(SIMULATED, dict(counts))
    assert all(counts[kind.value] for kind in (*FAILOVERS, Fault.CRASHED))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(EVERYDAY, EVERYDAY + SLOW, SLOW_PER_TEST))
def test_a_new_life_in_many_more_schedules(first: int, record_property: Callable[[str, object], None]) -> None:
    start = FIRST_SEED_WITH_FAILOVERS + first
    record_property(SIMULATED, dict(simulate_all(range(start, start + SLOW_PER_TEST))))


PLANTED = PlantedBugs("simulation of failovers", first=FIRST_SEED_WITH_FAILOVERS, most=10_000)


@PLANTED.cases(BUGS, lambda bug: bug.name)
def test_a_deliberate_bug_of_a_life_is_caught(bug: Bug, trial: Trial) -> None:
    look_for(bug, trial)


def test_other_schedules_have_no_failover() -> None:
    assert not make_plan(FIRST_SEED_WITH_FAILOVERS - 1).failovers
    assert make_plan(FIRST_SEED_WITH_FAILOVERS).failovers
