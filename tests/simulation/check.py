"""The checker: is the history of a schedule one that Headrace may have?

Place: after everything has come to rest. It holds the history of sends, answers and polls against
the log as it is stored now, read without any agent (stored_log.py), and against the journal of
commits. Definite answers bind: "not stored" as much as an offset. Only an answer that never came, or
REQUEST_TIMED_OUT, leaves a batch open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.simulation.check_flushes import check_flushes
from tests.simulation.check_lists import check_lists
from tests.simulation.check_polls import check_listings, check_own_writes, check_polls
from tests.simulation.check_refusals import check_refusals
from tests.simulation.check_sends import check_sends
from tests.simulation.check_stored import check_stored
from tests.simulation.problems import Kind, Problem
from tests.simulation.stored_log import StoredLog, read_stored_logs

if TYPE_CHECKING:
    from tests.simulation.world import World


def find_problems(world: World) -> list[Problem]:
    """Everything that is wrong with the history."""
    problems: list[Problem] = []
    logs = read_stored_logs(world, problems)
    parts = (
        *(check_stored, check_sends, check_refusals, check_polls, check_own_writes, check_listings, check_flushes),
        *(_check_producer_ids, check_lists),
    )
    for part in parts:
        problems += part(world, logs)
    problems += world.keyed.find_problems()
    return problems


def _check_producer_ids(world: World, logs: StoredLog) -> Iterator[Problem]:
    for producer_id in world.producer_ids:
        if world.producer_ids.count(producer_id) > 1:
            yield Problem(Kind.DUPLICATE, f"producer id handed out twice: {producer_id}")
