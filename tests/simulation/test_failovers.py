"""Schedules in which the metastore forgets its last commits, is followed by a standby that is behind, or exists twice.

What is acknowledged in the present life is in the log, nothing is there twice, no producer id and no offset of a leader
epoch is handed out twice; every agent serves the present log. A failure names its seed and the command that replays it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.bug import Bug
from tests.simulation.bugs import SEEDS_MAX
from tests.simulation.bugs_lives import BUGS
from tests.simulation.many import simulate_all
from tests.simulation.plan import FAILOVERS, FIRST_SEED_WITH_FAILOVERS, make_plan
from tests.simulation.summary import SIMULATED
from tests.simulation.world import simulate

FOUND_FROM = {
    "topic_numbers_do_not_carry_the_life": 70,
    "a_second_server_joins_a_life_of_another": 260,
    "a_server_that_was_promoted_earlier_takes_over": 410,
}
"""The first seed that is tried, for those that few schedules show."""
EVERYDAY = 100
EVERYDAY_PER_TEST = 50
SLOW = 3_000
SLOW_PER_TEST = 100


@pytest.mark.requirement("W1", "W3", "W7")
@pytest.mark.parametrize("first", range(0, EVERYDAY, EVERYDAY_PER_TEST))
def test_a_new_life_keeps_its_promises(first: int, record_property: Callable[[str, object], None]) -> None:
    start = FIRST_SEED_WITH_FAILOVERS + first
    counts = simulate_all(range(start, start + EVERYDAY_PER_TEST))
    record_property(SIMULATED, dict(counts))
    assert all(counts[kind.value] for kind in FAILOVERS)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(EVERYDAY, EVERYDAY + SLOW, SLOW_PER_TEST))
def test_a_new_life_in_many_more_schedules(first: int, record_property: Callable[[str, object], None]) -> None:
    start = FIRST_SEED_WITH_FAILOVERS + first
    record_property(SIMULATED, dict(simulate_all(range(start, start + SLOW_PER_TEST))))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_deliberate_bug_of_a_life_is_caught(bug: Bug) -> None:
    seen = set()
    with bug.installed():
        first = FIRST_SEED_WITH_FAILOVERS + FOUND_FROM.get(bug.name, 0)
        for seed in range(first, first + SEEDS_MAX):
            kinds = {problem.kind for problem in simulate(seed).problems}
            if kinds & set(bug.caught_as):
                return
            seen |= kinds
    pytest.fail(f"not caught within {SEEDS_MAX} schedules: {bug.name}, seen only as {seen or 'nothing'}")


def test_other_schedules_have_no_failover() -> None:
    assert not make_plan(FIRST_SEED_WITH_FAILOVERS - 1).failovers
    assert make_plan(FIRST_SEED_WITH_FAILOVERS).failovers
