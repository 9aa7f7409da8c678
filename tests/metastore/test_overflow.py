"""No number that a client can choose, or make grow, overflows a sum in SQL; and no row with such a number stops others.

Generated: every function is called with the least and the largest values of its arguments, and every operation below
is repeated with each column of each table at the end of its type. What may overflow is listed, with what bounds it.
test_sql_sums.py has the results of the pure functions.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from headrace.metastore.api.jobs import NewJob
from headrace.metastore.api.read import ExtentQuery, OffsetKind, OffsetQuery
from headrace.metastore.api.transactions import NO_PRODUCER, TransactionVerdict
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.memory import MemoryStore
from tests.manual_clock import ManualClock
from tests.metastore.commit_scenes import Scene, batch, file_of, open_scene
from tests.metastore.sessions import Session, beat, rows
from tests.metastore.sql_sources import source_of
from tests.metastore.transactions.transaction_scenes import Producer, claimed_group, new_producer_id, position

OVERFLOWS = {"22003", "22008", "22015"}
"""numeric_value_out_of_range, datetime_field_overflow, interval_field_overflow"""

FUNCTIONS = {
    "append_metadata": "offsets of the metadata log: a life has 2^27",
    "change_agent": "the same",
    "resume_janitor": "the same",
    "multiply32": "its arguments have 32 bits",
    "recent_entry": "places among the batches of a call, which are below 2^27",
    "recent_entries": "the same",
    "ring_number": "places in a ring are below 120",
    "record_partitions": "there are 50 partitions of metadata",
    "record_segments": "the same",
    "rebuild_files": "times of file ids, which have 48 bits",
    "set_copied_producers": "epochs of producers, which have 16 bits in a batch",
    "state_may_have_expired": "producer.id.expiration.ms is at least 1",
}
"""Functions that overflow for arguments that no caller passes."""

GROWING = {
    "commit_shards.seq": "one per commit",
    "log_slots.cleared_tick": "30 s of the clock each",
    "partition_heads.appended_bytes": "bytes of a partition",
    "partition_heads.high_watermark": "one per record",
    "partition_heads.open_extents": "0 again at the next time block, after at most 127",
    "partition_heads.updates": "one per commit",
    "producer_id_blocks.last_id": "a life has 2^40",
    "transactions.version": "one per request",
}
"""Columns of which a sum overflows at the largest value, and what bounds them: no client lets them grow by itself."""
NEGATIVE = {"commit_shards.seq", "extents.length", "metadata_head.next_offset"}
"""Columns of which a sum overflows at the least value: they are never negative."""

BOUNDARIES: dict[str, tuple[object, object]] = {
    "int2": (-(2**15), 2**15 - 1),
    "int4": (-(2**31), 2**31 - 1),
    "int8": (-(2**63), 2**63 - 1),
    "text": ("x", "x"),
    "uuid": (uuid.UUID(int=1), uuid.UUID(int=1)),
    "bool": (False, True),
    "bytea": ("", ""),
    "interval": ("0", "3000 years"),
    "timestamptz": ("0001-01-01", "9999-12-31"),
    "numeric": (-1e30, 1e30),
    "float8": (-1e30, 1e30),
    "tid": ("(0,1)", "(0,1)"),
}
INSTALLED = """
SELECT p.proname::text, array(SELECT typname::text FROM unnest(p.proargtypes) WITH ORDINALITY AS a (t, n)
                                JOIN pg_type ON pg_type.oid = t ORDER BY n)
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = 'public' AND p.prokind = 'f' ORDER BY p.oid::regprocedure::text
"""
NUMBERS = """
SELECT c.table_name::text, c.column_name::text, c.data_type::text
  FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
 WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE'
   AND c.data_type IN ('smallint', 'integer', 'bigint') AND c.is_generated = 'NEVER'
   AND NOT EXISTS (SELECT FROM information_schema.key_column_usage k
                    WHERE k.table_name = c.table_name AND k.column_name = c.column_name)
 ORDER BY 1, 2
"""
ENDS = {"smallint": 2**15 - 1, "integer": 2**31 - 1, "bigint": 2**63 - 1}
SAVED = "CREATE TABLE saved AS SELECT min({column}) AS value FROM {table}"


@pytest.mark.requirement("X1")
async def test_no_function_overflows_for_arguments_that_callers_pass(raw: Session) -> None:
    overflowed = set()
    await raw.set_autocommit(False)
    installed = [(name, kinds) for name, kinds in await rows(raw, INSTALLED) if _is_known(kinds)]
    for (name, kinds), end in itertools.product(installed, (0, 1)):
        values = [_value(kind, end) for kind in kinds]
        placeholders = ", ".join(f"%s::{kind.removeprefix('_')}{'[]' * kind.startswith('_')}" for kind in kinds)
        try:
            await raw.execute(f"SELECT {name}({placeholders})".encode(), values)
        except psycopg.Error as error:
            if error.sqlstate in OVERFLOWS:
                overflowed.add(name)
        await raw.rollback()
    assert len(installed) > 300
    assert overflowed == FUNCTIONS.keys()


def _is_known(kinds: list[str]) -> bool:
    """Functions of rows are called by others, with what is stored."""
    return all(kind.removeprefix("_") in BOUNDARIES for kind in kinds)


def _value(kind: str, end: int) -> object:
    value = BOUNDARIES[kind.removeprefix("_")][end]
    return [value] if kind.startswith("_") else value


Operation = Callable[[], Awaitable[Any]]


async def _operations(scene: Scene) -> dict[str, Operation]:
    """Return what clients, agents and controllers do all the time, on rows that are there."""
    store, key = scene.store, scene.keys[0]
    group_epoch, numbers = await claimed_group(scene, "g"), itertools.count()
    await store.groups.commit_offsets("g", group_epoch, [position(key, 1)])
    await store.jobs.enqueue_jobs([NewJob("k", str(number), b"") for number in range(200)])

    def idempotent() -> Awaitable[Any]:
        return scene.commit(file_of([batch(key, 0, 5, producer=77, epoch=next(numbers))]))

    return {
        "commit": lambda: scene.commit(file_of([batch(key)])),
        "commit of a producer": idempotent,
        "InitProducerId": lambda: store.transactions.init_producer("t", 1_000, NO_PRODUCER, new_producer_id()),
        "late transactions": lambda: store.transactions.open_transactions(10),
        "a job": lambda: store.jobs.claim_job("w", ["k"], lease_ms=60_000),
        "heartbeat": lambda: beat(store, scene.agent),
        "controller": lambda: store.controller.hold_controller_lease(1, uuid.UUID(int=1), 1),
        "fetch": lambda: store.index.find_extents([ExtentQuery(key, 0, 1 << 40)]),
        "feed": lambda: store.index.poll_feed({}),
        "list offsets": lambda: store.index.list_offsets([OffsetQuery(key, OffsetKind.LATEST)]),
        "offsets": lambda: store.groups.commit_offsets("g", group_epoch, [position(key, 1)]),
        "group": lambda: store.groups.claim_group("another", *scene.agent),
        "producer ids": lambda: store.commits.allocate_producer_ids(10),
        "old producers": lambda: store.housekeeping.expire_producer_state(10),
        "old offsets": lambda: store.housekeeping.expire_group_offsets(10),
        "old transactional ids": lambda: store.transactions.expire_transactional_ids(10**12, 10),
        "slots": store.housekeeping.rotate_log_slots,
        "life": store.life.describe_life,
    }


async def overflowing_columns(
    metastore: PostgresMetastore, raw: Session, *, largest: bool = True, only: str = ""
) -> set[str]:
    """Columns for which an operation, or the beginning of a life, overflows when they are at an end of their type."""
    scene = await open_scene(metastore, 2)
    producer = Producer(scene, "t")
    operations, found = await _operations(scene), set()
    raw.prepare_threshold = None
    await producer.init()
    await producer.send(0, 1)
    for table, column, kind in await rows(raw, NUMBERS):
        if (only and only != table) or not (await rows(raw, f"SELECT count(*) FROM {table}"))[0][0]:
            continue
        if table == "transactions":
            await producer.init()
            assert await producer.add(0) is TransactionVerdict.DONE
        await raw.execute(SAVED.format(table=table, column=column).encode())
        with contextlib.suppress(psycopg.errors.CheckViolation, psycopg.errors.UniqueViolation):
            await raw.execute(f"UPDATE {table} SET {column} = {ENDS[kind] if largest else -ENDS[kind] - 1}".encode())
            if await _overflows(raw, operations):
                found.add(f"{table}.{column}")
            await raw.execute(f"UPDATE {table} SET {column} = (SELECT value FROM saved)".encode())
        await raw.execute(b"DROP TABLE saved")
    return found


async def _overflows(raw: Session, operations: dict[str, Operation]) -> bool:
    found = False
    try:
        async with raw.transaction():  # while the transaction is open
            await raw.execute(b"SELECT forget_transactions()")
            raise psycopg.Rollback
    except psycopg.Error as error:
        found = error.sqlstate in OVERFLOWS
    for operation in operations.values():
        try:
            await operation()
        except HeadraceError as error:
            found |= any(f"sqlstate={state}" in str(error) for state in OVERFLOWS)
        except ValueError:  # a number that no enum has: not a sum
            continue
    return found


@pytest.mark.requirement("X1")
async def test_no_stored_number_that_a_client_lets_grow_overflows(metastore: PostgresMetastore, raw: Session) -> None:
    assert await overflowing_columns(metastore, raw) == GROWING.keys()


@pytest.mark.slow
async def test_no_stored_number_overflows_at_its_least_value(metastore: PostgresMetastore, raw: Session) -> None:
    assert await overflowing_columns(metastore, raw, largest=False) == NEGATIVE


async def test_the_planted_bug_is_found(metastore: PostgresMetastore, raw: Session) -> None:
    """As it was: no constraint, and the epoch after the last one is no smallint."""
    right = "(least(v_open.producer_epoch, 32766) + 1)"
    await raw.execute(b"ALTER TABLE transactions DROP CONSTRAINT transactions_open_epoch")
    await raw.execute(source_of("forget_transactions").replace(right, "(v_open.producer_epoch + 1)").encode())
    found = await overflowing_columns(metastore, raw, only="transactions")
    assert found == {"transactions.version", "transactions.producer_epoch"}


async def test_a_life_begins_although_all_epochs_of_jobs_are_used_up(
    metastore: PostgresMetastore, raw: Session
) -> None:
    await raw.execute(b"SELECT setval('segment_epochs', 2147483647)")
    keeper = LifeKeeper(metastore.life, MemoryStore(ManualClock()), ManualClock(), random.Random(1))
    await keeper.check()
    assert await keeper.begin_anew("restored") == 1
    await metastore.jobs.enqueue_jobs([NewJob("k", "a", b"")])
    with pytest.raises(HeadraceError, match="segment_epochs"):
        await metastore.jobs.claim_job("w", ["k"], lease_ms=60_000)
