"""Bugs that are planted into the SQL of a restore, each found by a test of this folder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import HeadraceError
from tests.metastore.restoring import test_restored_records as records
from tests.metastore.restoring import test_restored_topics as topics
from tests.metastore.sessions import Session
from tests.metastore.sql_sources import plant

Check = Callable[[PostgresMetastore, Session], Awaitable[None]]


def in_topics(check: Any, *more: object) -> Check:
    """A test of test_restored_topics.py, on a scene of it."""

    async def run(store: PostgresMetastore, raw: Session) -> None:
        await check(await topics.filled_scene(store), raw, *more)

    return run


def in_records(check: Any, *more: object) -> Check:
    """A test of test_restored_records.py, on a scene of it."""

    async def run(store: PostgresMetastore, raw: Session) -> None:
        await check(await records.filled_scene(store), *(raw, *more)[: check.__code__.co_argcount - 1])

    return run


PLANTED: dict[str, tuple[str, str, str, Check]] = {
    "a file that is being deleted comes back": (
        "revive_extents",
        "AND f.state = file_live()",
        "",
        in_topics(topics.test_a_file_that_is_being_deleted_stops_the_restore),
    ),
    "a deletion keeps no extents": (
        "purge_deleted_partitions",
        "FROM removed WHERE p_keep",
        "FROM removed WHERE false",
        in_topics(topics.test_a_restored_topic_is_what_was_deleted, True),
    ),
    "group offsets are not kept": (
        "keep_topics",
        "('group_offsets', 'partition_key'),",
        "",
        in_topics(topics.test_a_restored_topic_is_what_was_deleted, False),
    ),
    "housekeeping interferes with a restore": (
        "revive_topic",
        "SET restoring_until = wall_time() + interval '1 minute'",
        "SET restoring_until = restoring_until",
        in_topics(topics.test_an_abandoned_restore_is_removed_again),
    ),
    "aborted transactions go with their extents": (
        "move_log_starts",
        "AND NOT EXISTS (SELECT FROM removed_extents WHERE partition_key = t.key)",
        "",
        lambda store, raw: records.test_aborted_transactions_come_back_aborted(store, raw),
    ),
    "time blocks go with their extents": (
        "move_log_starts",
        "AND NOT EXISTS (SELECT FROM removed_extents WHERE partition_key = t.key)",
        "",
        lambda store, raw: records.test_times_are_found_again(store, raw),
    ),
    "a log start goes back over a hole": (
        "restore_records",
        "bool_and(f.is_next AND f.has_file)",
        "bool_and(f.has_file)",
        in_records(records.test_the_log_start_stops_above_a_hole),
    ),
    "a log start goes back into a deleted file": (
        "restore_records",
        "bool_and(f.is_next AND f.has_file)",
        "bool_and(f.is_next)",
        in_records(records.test_the_log_start_stops_above_a_file_that_may_be_deleted),
    ),
    "what another life removed comes back": (
        "restore_records",
        " AND r.life = cluster_life()",
        "",
        in_records(records.test_what_an_earlier_life_removed_stays_removed),
    ),
}


EVERY_DAY = ("a file that is being deleted comes back", "aborted transactions go with their extents")


@pytest.mark.parametrize(
    "bug", [name if name in EVERY_DAY else pytest.param(name, marks=pytest.mark.slow) for name in PLANTED]
)
async def test_a_planted_bug_is_found(bug: str, metastore: PostgresMetastore, metastore_url: str, raw: Session) -> None:
    function, right, wrong, check = PLANTED[bug]
    plant(metastore_url, function, right, wrong)
    with pytest.raises((AssertionError, HeadraceError, psycopg.Error, pytest.fail.Exception)):
        await check(metastore, raw)
