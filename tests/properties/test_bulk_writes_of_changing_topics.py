"""Bulk writes and changes of their topic's partitions, in any order. Planted bugs are caught."""

from __future__ import annotations

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.halving_scenes import open_halving_scene
from tests.metastore.sessions import session
from tests.metastore.sql_sources import Throwaway
from tests.planted import PlantedBugs, Trial
from tests.properties.changing_counts_history import ChangingCounts
from tests.seeds import seeds

STEPS = 80
BUGS = {
    "a topic doubles before decided writes are complete": (
        *("change_partition_counts", "WHERE g.count > t.undeleted_partition_count"),
        "WHERE false",
    ),
    "a child is merged before decided writes are complete": (
        *("merge_children", "c.chunk >= w.next_chunk AND c.run_key && p_child_keys"),
        "false",
    ),
    "an old layout is decided": (
        *("decide_bulk_write", "t.undeleted_partition_count = p_counts[array_position(p_topics, t.topic_number)]"),
        "true",
    ),
    "an announcement is ignored": ("decide_bulk_write", "a.topic_id = p.topic_id AND", "false AND"),
    "an announcement completes nothing": ("announce_counts", "PERFORM commit_bulk_chunk(", "PERFORM concat("),
    "an announcement does not end": ("announce_counts", "RETURN 120000", "RETURN 12000000000"),
    "an alias takes a decision": ("decide_bulk_write", "p.state = state_takes_records()", "p.state >= 0"),
}
"""What is wrong -> (function, right text, wrong text)."""


async def run_history(url: str, store: PostgresMetastore, seed: int) -> None:
    """One history."""
    async with session(url) as raw:
        await ChangingCounts(await open_halving_scene(store, raw), seed).run(STEPS)


@pytest.mark.requirement("X6.3", "X5")
@pytest.mark.parametrize("seed", seeds(range(3), range(3, 60)))
async def test_no_write_is_appended_behind_a_change_of_its_topic(
    seed: int, metastore_url: str, metastore: PostgresMetastore
) -> None:
    await run_history(metastore_url, metastore, seed)


PLANTED = PlantedBugs("bulk writes of changing topics", most=200)


@PLANTED.cases(BUGS)
async def test_the_histories_catch(bug: str, trial: Trial, throwaway: Throwaway) -> None:
    """Each history has its own database."""
    function, *texts = BUGS[bug]
    await throwaway.look_for(trial, function, [texts], run_history, Exception)
