"""Schedules of minutes in which leaders move, mostly there and back, and producers keep a connection to each agent.

No agent calls a batch out of order while an earlier one may be on its way through another agent, and what is
remembered ends in time. A failure names its seed and the command that replays it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.planted import PlantedBugs, Trial
from tests.simulation.bug import Bug
from tests.simulation.bugs_moves import BUGS
from tests.simulation.faults import Fault
from tests.simulation.many import simulate_all
from tests.simulation.plan import FIRST_SEED_WITH_MOVES, make_plan
from tests.simulation.planting import look_for
from tests.simulation.summary import SIMULATED

EVERYDAY = 4
SLOW = 1_000
SLOW_PER_TEST = 100


@pytest.mark.requirement("W7")
def test_producers_follow_leaders_that_move(record_property: Callable[[str, object], None]) -> None:
    counts = simulate_all(range(FIRST_SEED_WITH_MOVES, FIRST_SEED_WITH_MOVES + EVERYDAY))
    record_property(SIMULATED, dict(counts))
    assert counts[Fault.LEADER_MOVED.value] > EVERYDAY


@pytest.mark.slow
@pytest.mark.parametrize("first", range(EVERYDAY, EVERYDAY + SLOW, SLOW_PER_TEST))
def test_producers_follow_leaders_in_many_more_schedules(
    first: int, record_property: Callable[[str, object], None]
) -> None:
    start = FIRST_SEED_WITH_MOVES + first
    record_property(SIMULATED, dict(simulate_all(range(start, start + SLOW_PER_TEST))))


PLANTED = PlantedBugs("simulation of moves", first=FIRST_SEED_WITH_MOVES, most=10_000)


@PLANTED.cases(BUGS, lambda bug: bug.name)
def test_a_deliberate_bug_of_what_unsettles_a_connection_is_caught(bug: Bug, trial: Trial) -> None:
    look_for(bug, trial)


def test_some_schedules_have_failovers_and_all_last_minutes() -> None:
    plans = [make_plan(FIRST_SEED_WITH_MOVES + seed) for seed in range(8)]
    assert [bool(plan.failovers) for plan in plans] == [False, False, False, True] * 2
    assert all(plan.moves and plan.seconds >= 120 for plan in plans)
    assert not make_plan(FIRST_SEED_WITH_MOVES - 1).moves
