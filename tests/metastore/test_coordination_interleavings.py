"""Registration, groups and jobs in seeded orders, and topics that grow while commits run; planted bugs are caught.

tests/metastore/coordination.py and growth_interleavings.py say how.
"""

from __future__ import annotations

from functools import partial

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import HeadraceError
from tests.metastore.coordination import CoordinationHistory
from tests.metastore.count_interleavings import CountHistory
from tests.metastore.growth_interleavings import GrowthHistory
from tests.metastore.interleavings import Unexplained, played
from tests.metastore.lock_gates import Sessions
from tests.metastore.sql_sources import Throwaway
from tests.planted import PlantedBugs, Trial
from tests.seeds import seeds

ROUNDS = 25
ROUNDS_OF_A_BUG = 60
"""Number of rounds of one history, for a planted bug."""

BUGS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "a claim that does not lock the group": (
        "claim_group",
        [("WHERE g.group_id = p_group_id FOR UPDATE;", "WHERE g.group_id = p_group_id;")],
    ),
    "a release under a claim that is over": (
        "release_groups",
        [("JOIN consumer_groups g USING (group_id, coordinator_epoch)", "JOIN consumer_groups g USING (group_id)")],
    ),
    "a registration that does not lock the log": (
        "register_agent",
        [
            ("v_head := lock_metadata_head();", "v_head := (SELECT next_offset FROM metadata_head);"),
            ("PERFORM FROM agent_leases l ORDER BY l.node_id FOR UPDATE;", ""),
            ("UPDATE lease_watch SET last_contact_at = wall_time();", ""),
        ],
    ),
    "a job that two workers claim": ("claim_job", [("LIMIT 1 FOR UPDATE SKIP LOCKED", "LIMIT 1")]),
    "a lease that is ended twice": (
        "end_job",
        [("    ELSIF v_job.state <> job_leased() THEN\n        RETURN NULL;\n", "")],
    ),
}
"""What is wrong -> (function, [(right text, wrong text)])."""


async def _tell(url: str, store: PostgresMetastore, seed: int, rounds: int = ROUNDS_OF_A_BUG) -> CoordinationHistory:
    async with Sessions(url) as sessions:
        history = CoordinationHistory(sessions, store, seed)
        for _ in range(rounds):
            await history.round()
        return history


@pytest.mark.parametrize("seed", seeds(range(2), range(2, 8)))
async def test_some_order_explains_what_every_caller_learned(
    metastore: PostgresMetastore, metastore_url: str, seed: int
) -> None:
    history = await _tell(metastore_url, metastore, seed, ROUNDS)
    assert history.claims
    assert history.leases


PLANTED = PlantedBugs("interleavings of coordination", most=100, is_race=True)


@PLANTED.cases(BUGS)
async def test_a_planted_bug_is_caught(bug: str, trial: Trial, throwaway: Throwaway) -> None:
    await throwaway.look_for(trial, *BUGS[bug], _tell, Unexplained, HeadraceError, sessions=6)


GROWTH_BUGS = {
    "a growth that does not look at the log's end": (
        "create_partitions",
        "    IF lock_metadata_head() <> p_expected_head THEN\n        RETURN false;\n    END IF;\n",
        "    PERFORM lock_metadata_head();\n",
    ),
}


@pytest.mark.requirement("W1", "W4")
@pytest.mark.parametrize("seed", seeds([0], range(1, 4)))
async def test_some_order_explains_commits_during_growth(
    metastore: PostgresMetastore, metastore_url: str, seed: int
) -> None:
    await played(metastore_url, metastore, seed, 12, GrowthHistory, ends_files=False)


PLANTED_IN_GROWTH = PlantedBugs("interleavings of growth", most=100, is_race=True)


@PLANTED_IN_GROWTH.cases(GROWTH_BUGS)
async def test_a_planted_bug_of_growth_is_caught(bug: str, trial: Trial, throwaway: Throwaway) -> None:
    function, *texts = GROWTH_BUGS[bug]
    history = partial(played, rounds=ROUNDS_OF_A_BUG, made=GrowthHistory, ends_files=False)
    await throwaway.look_for(trial, function, [texts], history, Unexplained, HeadraceError, sessions=6)


COUNT_BUGS = {
    "a commit that does not look at marks": ("commit_files", " AND p.state = state_takes_records()", ""),
    "a count that is not written with the epochs": (
        "change_partition_counts",
        "undeleted_partition_count = g.count",
        "undeleted_partition_count = t.undeleted_partition_count",
    ),
    "epochs that do not rise with the count": (
        "change_partition_counts",
        "SET leader_epoch = r.epoch, state",
        "SET state",
    ),
    "an index that returns begins at 0": ("change_partition_counts", "coalesce(r.high_watermark, 0)", "0"),
    "a removal of what is not empty": ("remove_partition", "RETURN removal_not_empty();", "NULL;"),
    "a removal that leaves producer states": (
        "remove_partition",
        "AND producer_id IN (SELECT",
        "AND false AND producer_id IN (SELECT",
    ),
    "a removal that no reader hears of": (
        "remove_partition",
        "    PERFORM append_feed(v_partition.shard, feed_topic_deleted(), int8send(v_key));\n",
        "",
    ),
}


@pytest.mark.requirement("P2", "P3", "P4")
@pytest.mark.parametrize("seed", seeds([0], range(1, 4)))
async def test_some_order_explains_commits_during_changes_of_counts(
    metastore: PostgresMetastore, metastore_url: str, seed: int
) -> None:
    await played(metastore_url, metastore, seed, 20, CountHistory, ends_files=False)


PLANTED_IN_CHANGES = PlantedBugs("interleavings of changes", most=100, is_race=True)


@PLANTED_IN_CHANGES.cases(COUNT_BUGS)
async def test_a_planted_bug_of_changes_is_caught(bug: str, trial: Trial, throwaway: Throwaway) -> None:
    function, *texts = COUNT_BUGS[bug]
    history = partial(played, rounds=ROUNDS_OF_A_BUG, made=CountHistory, ends_files=False)
    await throwaway.look_for(trial, function, [texts], history, Unexplained, HeadraceError, sessions=6)
