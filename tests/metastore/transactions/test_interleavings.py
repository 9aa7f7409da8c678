"""Transactions of several sessions in forced and seeded orders; planted SQL bugs are caught.

transaction_interleavings.py says how. Each bug is a replaced text in one function of a throw-away database;
test_forced_orders.py has those that random orders seldom show.
"""

from __future__ import annotations

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import CorruptError
from tests.metastore.sql_sources import Throwaway
from tests.metastore.transactions.transaction_interleavings import Impossible, played
from tests.planted import PlantedBugs, Trial
from tests.seeds import seeds

BUGS: dict[str, tuple[str, str, str]] = {
    "a marker lands one offset early": (
        "end_transaction",
        "h.high_watermark AS marker",
        "h.high_watermark - 1 AS marker",
    ),
    "a partition is lost": ("end_transaction", "AND t.first_offset IS NOT NULL", "AND t.first_offset > 0"),
    "offsets are stored without a commit": (
        "end_transaction",
        "    IF p_commits THEN\n        PERFORM store_pending",
        "    IF true THEN\n        PERFORM store_pending",
    ),
    "offsets are forgotten": ("end_transaction", "        PERFORM store_pending_offsets(v_producer);", "        NULL;"),
    "an abort is recorded as nothing": (
        "end_transaction",
        "FROM part WHERE NOT p_commits",
        "FROM part WHERE p_commits",
    ),
    "the other outcome": (
        "end_transaction",
        "v_producer, p_commits, p_marker_epoch",
        "v_producer, true, p_marker_epoch",
    ),
    "the version is not looked at": (
        "end_transaction",
        "WHERE transactional_id = p_transactional_id AND version = p_version;\n    IF NOT FOUND",
        "WHERE transactional_id = p_transactional_id;\n    IF NOT FOUND",
    ),
    "the stable offset is one too high": (
        "end_transaction",
        "first_open_offset = open,",
        "first_open_offset = open + 1,",
    ),
    "the stable offset forgets other transactions": (
        "end_transaction",
        "first_open_offset = open,",
        "first_open_offset = NULL,",
    ),
    "partitions stay open": (
        "end_transaction",
        "    DELETE FROM transaction_partitions WHERE",
        "    SELECT FROM transaction_partitions INTO v_producer WHERE false AND",
    ),
    "a zombie is accepted": (
        "judge_transactions",
        "WHEN known.producer_epoch IS DISTINCT FROM epoch THEN",
        "WHEN known.producer_epoch IS NULL THEN",
    ),
    "the first offset moves": (
        "judge_transactions",
        "partition_key = p_part_key[part] AND first_offset IS NOT NULL);",
        "partition_key = p_part_key[part] AND false);",
    ),
    "the first open offset is the newest": ("judge_transactions", "SELECT coalesce(open, (", "SELECT coalesce(NULL, ("),
    "the feed does not say what is open": (
        "commit_files",
        "CASE WHEN v_is_txn THEN feed_transaction() ELSE feed_commit() END",
        "feed_commit()",
    ),
}


@pytest.mark.parametrize("seed", seeds(range(2), range(2, 8)))
async def test_what_is_left_is_a_history_of_transactions(
    metastore: PostgresMetastore, metastore_url: str, seed: int
) -> None:
    await played(metastore_url, metastore, seed)


PLANTED = PlantedBugs("interleavings of transactions", most=100, is_race=True)


@PLANTED.cases(BUGS)
async def test_a_planted_bug_is_caught(bug: str, trial: Trial, throwaway: Throwaway) -> None:
    function, *texts = BUGS[bug]
    await throwaway.look_for(trial, function, [texts], played, Impossible, CorruptError)
