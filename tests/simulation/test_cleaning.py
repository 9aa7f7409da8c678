"""Schedules with a topic that is cleaned by key, while its workers are killed, paused and superseded.

The last value of each key stays readable, offsets and order stay, a reader from any offset reaches the end, and delete
markers stay for delete.retention.ms. A failure names its seed and the command that replays it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.planted import PlantedBugs, Trial
from tests.simulation.bug import Bug
from tests.simulation.bugs_cleaning import BUGS
from tests.simulation.faults import Fault
from tests.simulation.many import simulate_all
from tests.simulation.plan import FIRST_SEED_WITH_CLEANING, make_plan
from tests.simulation.planting import look_for
from tests.simulation.summary import SIMULATED
from tests.simulation.world import simulate

EVERYDAY = 18
EVERYDAY_PER_TEST = 18
SLOW = 1_000
SLOW_PER_TEST = 100


@pytest.mark.requirement("L2", "L3", "L4", "L6")
@pytest.mark.parametrize("first", range(0, EVERYDAY, EVERYDAY_PER_TEST))
def test_cleaning_keeps_its_promises(first: int, record_property: Callable[[str, object], None]) -> None:
    start = FIRST_SEED_WITH_CLEANING + first
    counts = simulate_all(range(start, start + EVERYDAY_PER_TEST))
    record_property(SIMULATED, dict(counts))
    assert counts[Fault.CLEANED.value] > 3 * EVERYDAY_PER_TEST


@pytest.mark.slow
@pytest.mark.parametrize("first", range(EVERYDAY, EVERYDAY + SLOW, SLOW_PER_TEST))
def test_cleaning_in_many_more_schedules(first: int, record_property: Callable[[str, object], None]) -> None:
    start = FIRST_SEED_WITH_CLEANING + first
    record_property(SIMULATED, dict(simulate_all(range(start, start + SLOW_PER_TEST))))


PLANTED = PlantedBugs("simulation of cleaning", first=FIRST_SEED_WITH_CLEANING, most=10_000)
"""The horizon of an unfinished pass counts in 4 of 2,300 schedules."""


@PLANTED.cases(BUGS, lambda bug: bug.name)
def test_a_deliberate_bug_of_cleaning_is_caught(bug: Bug, trial: Trial) -> None:
    look_for(bug, trial)


def test_other_schedules_have_no_compacted_topic() -> None:
    assert not make_plan(FIRST_SEED_WITH_CLEANING - 1).keyed_producers
    assert make_plan(FIRST_SEED_WITH_CLEANING).keyed_producers


def test_a_seed_with_cleaning_gives_the_same_history_again() -> None:
    seeds = range(FIRST_SEED_WITH_CLEANING, FIRST_SEED_WITH_CLEANING + 5)
    assert [simulate(seed).digest for seed in seeds] == [simulate(seed).digest for seed in seeds]
