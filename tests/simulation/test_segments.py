"""Schedules of a cluster with keys for merged files, while workers, janitor and cleanup are killed and superseded.

Every object in the bucket is one that an extent names, no key is left in between, and the records of both logs follow
the states: judged after every call, and at the end (check_segments.py). A failure names its seed and the command
that replays it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.house.requirements_report import load_rows
from tests.planted import PlantedBugs, Trial
from tests.simulation.bug import Bug
from tests.simulation.bugs_segments import BUGS
from tests.simulation.faults import Fault
from tests.simulation.many import simulate_all
from tests.simulation.plan import FIRST_SEED_WITH_SEGMENTS, make_plan
from tests.simulation.planting import look_for
from tests.simulation.summary import SIMULATED
from tests.simulation.world import simulate

EVERYDAY = 20
EVERYDAY_PER_TEST = 10
SLOW = 1_000
SLOW_PER_TEST = 100


@pytest.mark.requirement("R6", "R11")
@pytest.mark.parametrize("first", range(0, EVERYDAY, EVERYDAY_PER_TEST))
def test_every_key_comes_to_its_end(first: int, record_property: Callable[[str, object], None]) -> None:
    start = FIRST_SEED_WITH_SEGMENTS + first
    counts = simulate_all(range(start, start + EVERYDAY_PER_TEST))
    record_property(SIMULATED, dict(counts))
    assert counts[Fault.WORKED.value] > 20 * EVERYDAY_PER_TEST


@pytest.mark.slow
@pytest.mark.parametrize("first", range(EVERYDAY, EVERYDAY + SLOW, SLOW_PER_TEST))
def test_every_key_in_many_more_schedules(first: int, record_property: Callable[[str, object], None]) -> None:
    start = FIRST_SEED_WITH_SEGMENTS + first
    record_property(SIMULATED, dict(simulate_all(range(start, start + SLOW_PER_TEST))))


PLANTED = PlantedBugs("simulation of segments", first=FIRST_SEED_WITH_SEGMENTS)


@PLANTED.cases(BUGS, lambda bug: bug.name)
def test_a_deliberate_bug_of_the_lifecycle_is_caught(bug: Bug, trial: Trial) -> None:
    assert not simulate(look_for(bug, trial)).problems, "without the bug"


def test_each_bug_breaks_a_promise() -> None:
    rows = load_rows()
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    for bug in BUGS:
        assert bug.what, bug.name
        assert bug.requirement in rows, bug.name


def test_other_schedules_have_no_keys() -> None:
    assert not make_plan(FIRST_SEED_WITH_SEGMENTS - 1).has_segments
    assert make_plan(FIRST_SEED_WITH_SEGMENTS).has_segments


def test_a_seed_with_keys_gives_the_same_history_again() -> None:
    seeds = range(FIRST_SEED_WITH_SEGMENTS, FIRST_SEED_WITH_SEGMENTS + 5)
    assert [simulate(seed).digest for seed in seeds] == [simulate(seed).digest for seed in seeds]
