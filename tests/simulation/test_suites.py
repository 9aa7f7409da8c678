"""Each suite of schedules keeps its promises, and its deliberate bugs are caught (suites.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.planted import Trial, parametrized
from tests.simulation.bug import Bug, name_of
from tests.simulation.many import simulate_all
from tests.simulation.planting import look_for
from tests.simulation.seeds import make_plan
from tests.simulation.suites import MOVES, PARTS, SEGMENTS, SUITES, Suite
from tests.simulation.summary import SIMULATED
from tests.simulation.world import simulate

SLOW_PER_TEST = 100


@pytest.mark.parametrize(
    ("suite", "first"),
    [
        pytest.param(suite, first, id=f"{suite.name}-{first}", marks=pytest.mark.requirement(*suite.requirements))
        for suite in SUITES
        for first in range(0, suite.everyday, suite.per_test)
    ],
)
def test_schedules_keep_their_promises(
    suite: Suite, first: int, record_property: Callable[[str, object], None]
) -> None:
    start = suite.first + first
    counts = simulate_all(range(start, start + suite.per_test))
    record_property(SIMULATED, dict(counts))
    assert suite.did(counts, suite.per_test)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "first"),
    [
        pytest.param(suite, first, id=f"{suite.name}-{first}")
        for suite in SUITES
        for first in range(suite.everyday, suite.everyday + suite.slow, SLOW_PER_TEST)
    ],
)
def test_many_more_schedules_keep_them(
    suite: Suite, first: int, record_property: Callable[[str, object], None]
) -> None:
    start = suite.first + first
    record_property(SIMULATED, dict(simulate_all(range(start, start + SLOW_PER_TEST))))


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_only_its_schedules_have_what_a_suite_adds(suite: Suite) -> None:
    assert not suite.adds(make_plan(suite.first - 1))
    assert suite.adds(make_plan(suite.first))


@parametrized(case for suite in SUITES if suite is not SEGMENTS for case in suite.planted.params(suite.bugs, name_of))
def test_a_deliberate_bug_is_caught(bug: Bug, trial: Trial) -> None:
    look_for(bug, trial)


@SEGMENTS.planted.cases(SEGMENTS.bugs, name_of)
def test_a_deliberate_bug_of_the_lifecycle_is_caught(bug: Bug, trial: Trial) -> None:
    assert not simulate(look_for(bug, trial)).problems, "without the bug"


def test_some_schedules_with_moves_have_failovers_and_all_last_minutes() -> None:
    plans = [make_plan(MOVES.first + seed) for seed in range(8)]
    assert [bool(plan.failovers) for plan in plans] == [False, False, False, True] * 2
    assert all(plan.moves and plan.seconds >= 120 for plan in plans)


def test_there_are_agents_that_follow_parts_of_the_feed_and_others() -> None:
    plans = [make_plan(PARTS.first + seed) for seed in range(40)]
    assert any(None in plan.follows and any(plan.follows) for plan in plans)
    assert any(plan.compares_lists for plan in plans)
