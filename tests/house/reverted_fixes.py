"""The defences against Postgres going wrong, each with what takes it out.

The names begin with the number of the row in docs/results/2026-11-22-postgres-rows.md.
"""

from __future__ import annotations

from typing import Any

from headrace.agent.fetch.handler import AwaitedLog
from headrace.agent.listener.memory import MemoryBudget
from headrace.agent.serve.housekeeping import Housekeeper
from headrace.cli.process import shell as waiting
from headrace.config.settings import Settings
from headrace.metastore.postgres import pool, statement, store
from headrace.metastore.postgres.files.files import PostgresDeletion
from headrace.metastore.postgres.pool import open_pool
from headrace.metastore.postgres.read import read
from headrace.metastore.postgres.statement import Pool
from headrace.storage.errors import HeadraceError
from tests.house.reversal import Reversal, with_attribute, with_sql, with_value
from tests.patch import Patch

POOL, WIDE = "tests/metastore/test_pool.py", "tests/metastore/test_wide_look_ups.py"
COST, COMMIT = "tests/metastore/test_commit_cost.py", "tests/metastore/test_commit.py"
FORGOTTEN = "test_only_an_id_that_may_be_forgotten_starts_above_zero"
NEXT_PRODUCER_ID = """
CREATE OR REPLACE FUNCTION allocate_producer_ids(p_count int) RETURNS bigint LANGUAGE sql VOLATILE
SET enable_seqscan = off AS $$
    SELECT pg_advisory_xact_lock(producer_id_lock(), 0);
    INSERT INTO producer_id_blocks (first_id, last_id, leased_at)
    SELECT first_id, first_id + p_count - 1, to_timestamp(wall_ms() / 1000.0)
      FROM (SELECT greatest(coalesce((SELECT max(last_id) + 1 FROM producer_id_blocks), 1000),
                            life_floor64(cluster_life())) AS first_id) AS next
    RETURNING first_id;
$$"""
"""The maximum of a column without an index: all blocks are read."""
EXPIRED = """
CREATE OR REPLACE FUNCTION state_may_have_expired(p_key bigint, p_producer_id bigint, p_expiration_ms bigint)
RETURNS boolean LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT EXISTS (SELECT FROM producer_id_blocks
                    WHERE p_producer_id BETWEEN first_id AND last_id AND ({old_producer}))
       AND EXISTS (SELECT FROM partitions WHERE partition_key = p_key AND ({old_partition}))
        OR EXISTS (SELECT FROM removed_partitions r
                     JOIN partitions p USING (partition_key)
                     JOIN producer_id_blocks b ON b.leased_at < p.created_at
                    WHERE r.partition_key = p_key AND p_producer_id BETWEEN b.first_id AND b.last_id)
$$"""
OLD_PRODUCER = "to_ms(leased_at) + producer_id_block_ms() < wall_ms() - p_expiration_ms"
OLD_PARTITION = "to_ms(created_at) < wall_ms() - p_expiration_ms"
ALWAYS_WHOLE = """
CREATE OR REPLACE FUNCTION say_whole() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.contiguous_life := cluster_life(); RETURN NEW; END $$;
CREATE OR REPLACE TRIGGER say_whole BEFORE INSERT OR UPDATE ON producer_state
FOR EACH ROW EXECUTE FUNCTION say_whole()"""
"""Each producer is taken for one with all sequences from 0 on in the log."""


async def _stay(*_: object) -> None:
    """Keep the connection, or the rows, as they are."""


def _one_pool(patch: Patch) -> None:
    """Readers take the connections of commits."""
    opened: dict[str, Pool] = {}
    right = open_pool

    async def remembered(url: str, settings: Settings) -> Pool:
        opened[url] = await right(url, settings)
        return opened[url]

    async def the_same(url: str, settings: Settings) -> Pool:
        return opened[url]

    patch.replace(store, "open_pool", remembered)
    patch.replace(store, "open_readers_pool", the_same)


async def _only_expected_errors(self: Housekeeper, name: str) -> bool:
    try:
        return await self._steps[name].has_more()
    except HeadraceError:
        self._failures.labels(name).inc()
        return False


async def _without_catching_up(self: AwaitedLog, *arguments: Any, **options: Any) -> object:
    return await self._locate(*arguments, **options)


REVERSALS = {
    "1 connections go to servers that accept writes": Reversal(
        with_attribute(pool, "PRIMARY", {"target_session_attrs": "any"}),
        f"{POOL}::test_a_server_that_only_reads_is_refused",
    ),
    "1 a connection that turned read-only is closed": Reversal(
        with_attribute(statement, "_leave_standby", _stay),
        f"{POOL}::test_a_connection_that_turned_read_only_is_replaced",
    ),
    "2 a commit finds the newest version of a row first": Reversal(
        with_value("update_block(p_updates bigint) RETURNS bigint", "-(p_updates / 32)"),
        f"{COST}::test_a_held_snapshot_costs_a_commit_a_few_pages",
    ),
    "3 one budget for a look-up over all its partitions": Reversal(
        with_attribute(read, "EXTENTS_PER_CALL", 2**31 - 1),
        f"{WIDE}::test_a_look_up_of_thousands_of_lagging_partitions_reads_a_bounded_number_of_extents",
    ),
    "3 readers have their own connections": Reversal(
        _one_pool, f"{WIDE}::test_no_number_of_blocked_look_ups_delays_a_commit_a_heartbeat_or_the_feed"
    ),
    "4 responses share a limited memory": Reversal(
        with_attribute(MemoryBudget, "_fits", lambda self, size, *, small: True),
        "tests/agent/listener/test_shares.py::test_unread_replies_count_until_they_are_read",
    ),
    "5 objects that are refused are set aside": Reversal(
        with_attribute(PostgresDeletion, "set_aside_files", _stay),
        "tests/compactor/test_janitor.py::test_what_the_store_refuses_keeps_its_row_and_holds_up_nothing",
    ),
    "6 a step of housekeeping that breaks does not end the others": Reversal(
        with_attribute(Housekeeper, "_has_more", _only_expected_errors),
        "tests/agent/serve/test_housekeeping.py::test_a_step_that_breaks_does_not_starve_the_others",
    ),
    "7 a block of producer ids costs an index probe": Reversal(
        with_sql("allocate_producer_ids", NEXT_PRODUCER_ID),
        f"{COST}::test_a_block_of_producer_ids_costs_the_same_for_any_number_of_leased_ones",
    ),
    "8 a young partition has forgotten no producer": Reversal(
        with_sql("state_may_have_expired", EXPIRED.format(old_producer=OLD_PRODUCER, old_partition="true")),
        f"{COMMIT}::{FORGOTTEN}",
    ),
    "8 a young producer was forgotten by no partition": Reversal(
        with_sql("state_may_have_expired", EXPIRED.format(old_producer="true", old_partition=OLD_PARTITION)),
        f"{COMMIT}::{FORGOTTEN}",
    ),
    "9 a stored retry that was overtaken is a duplicate": Reversal(
        with_value("is_behind(p_sequence int, p_records int, p_next int, p_wrapped boolean) RETURNS boolean", "false"),
        f"{COMMIT}::test_the_last_five_batches_are_known_again",
    ),
    "9 but only if everything below it is stored": Reversal(
        with_sql("fold_producers", ALWAYS_WHOLE), f"{COMMIT}::test_what_may_have_a_gap_is_never_called_stored"
    ),
    "10 a process waits for Postgres at its start": Reversal(
        with_attribute(waiting, "RETRY_SECONDS", float("inf")),
        "tests/cli/test_cli_waiting.py::test_connecting_is_tried_until_the_registration_timeout",
    ),
    "11 a fetch that does not wait shows what was acknowledged": Reversal(
        with_attribute(AwaitedLog, "_locate_acknowledged", _without_catching_up),
        "tests/agent/fetch/test_poll.py::test_a_fetch_that_does_not_wait_shows_what_was_acknowledged_before_it",
    ),
}
