"""The harness proves itself: every deliberate bug is caught, as what it is (tests/planted.py)."""

from __future__ import annotations

from tests.house.requirements_report import load_rows
from tests.planted import PlantedBugs, Trial, recorded
from tests.simulation.bug import Bug, name_of
from tests.simulation.bugs import BUGS
from tests.simulation.planting import look_for
from tests.simulation.problems import Kind
from tests.simulation.suites import FAILING_OVER, PARTS, SEGMENTS
from tests.simulation.world import simulate

PLANTED = PlantedBugs("simulation", most=6_000)
"""`a_fetch_takes_its_marks_after_its_look_up` is shown by about 1 seed in 400."""


@PLANTED.cases(BUGS, name_of)
def test_a_deliberate_bug_is_caught(bug: Bug, trial: Trial) -> None:
    look_for(bug, trial)


def test_the_list_is_long_and_each_bug_breaks_a_promise() -> None:
    assert len(BUGS) >= 20
    rows = load_rows()
    for bugs in (BUGS, SEGMENTS.bugs):
        assert len({bug.name for bug in bugs}) == len(bugs)
        for bug in bugs:
            assert bug.what, bug.name
            assert bug.requirement in rows, bug.name


def test_every_kind_of_problem_is_caught_in_some_bug() -> None:
    """Else a class of the checker might detect nothing, unnoticed."""
    assert {bug.caught_as[0] for bug in (*BUGS, *SEGMENTS.bugs, *FAILING_OVER.bugs, *PARTS.bugs)} == set(Kind)


def test_a_bug_is_gone_once_it_is_taken_out() -> None:
    bug = next(bug for bug in BUGS if bug.name == "duplicate_is_answered_with_an_error")
    seed = recorded()[PLANTED.name][bug.name]
    with bug.installed():
        assert simulate(seed).problems
    assert not simulate(seed).problems
