"""Histories of deletions, cut logs and restores keep their promises; planted bugs are found."""

from __future__ import annotations

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.restoring.restore_history import History
from tests.metastore.sessions import session
from tests.metastore.sql_sources import Throwaway
from tests.planted import PlantedBugs, Trial

BUGS = {
    "the files stay dead": (
        "revive_extents",
        "SET live_bytes = f.live_bytes + u.bytes, dead_at = NULL",
        "SET size = f.size",
    ),
    "open transactions are forgotten": ("restore_topic", "    PERFORM abort_in_restored(p_topic_number);\n", ""),
    "a log start keeps no extents": ("move_log_starts", "FROM removed WHERE v_keep", "FROM removed WHERE false"),
    "agents are not told to drop a log": (
        "restore_records",
        "        PERFORM append_feed(v_partition.shard, feed_topic_deleted(), int8send(p_key));\n",
        "",
    ),
    "what a log start has not removed yet is left out": (
        "revive_topic",
        "(content ->> 'extents_from')::bigint AS start",
        "(content ->> 'log_start_offset')::bigint AS start",
    ),
}
"""What is wrong -> (file, right text, wrong text)."""
PLANTED = PlantedBugs("restored topics", most=100)


@pytest.mark.requirement("W3")
@pytest.mark.parametrize("seeds", [2, pytest.param(300, marks=pytest.mark.slow)])
async def test_what_was_removed_comes_back_whole(seeds: int, throwaway: Throwaway) -> None:
    for seed in range(seeds):
        async with throwaway.store() as (url, store):
            await _run(url, store, seed)


async def _run(url: str, store: PostgresMetastore, seed: int) -> None:
    async with session(url) as raw:
        try:
            await History(store, raw, seed).run()
        except Exception as error:
            error.add_note(f"seed={seed}")
            raise


@PLANTED.cases(BUGS)
async def test_a_planted_bug_is_found(bug: str, trial: Trial, throwaway: Throwaway) -> None:
    function, *texts = BUGS[bug]
    await throwaway.look_for(trial, function, [texts], _run, Exception)
