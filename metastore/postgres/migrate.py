"""Brings a database to this version's schema: numbered files forward, then functions, then first rows.

Place: `headrace migrate` and `headrace dev`, before any agent of this version starts.
Invariant: one run is one transaction: agents that run meanwhile see the old tables and functions, or all new ones.
Files are applied in order, once, and never change after that (their checksums are recorded). Functions
carry no state and are replaced each time. Two processes that migrate at once wait for each other. A run takes all its
tables first. Under load it may not get them, or agents wait for it while it waits for them: it undoes itself and tries
again.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import count
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg import sql

from headrace.metastore.api.agents import SUPPORTED_FEATURES
from headrace.metastore.log.effective_configs import BROKER_RESOURCE, WHOLE_CLUSTER, setting_record
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.postgres.errors import translated
from headrace.metastore.postgres.migration_locks import NONE, locks
from headrace.metastore.postgres.single_connection import connected
from headrace.metastore.postgres.sql_files import SqlFile, function_files, sql_files
from headrace.storage.cluster_properties import random_cluster_id
from headrace.storage.errors import InvalidError

MIGRATIONS = resources.files("headrace.migrations")
LOCK = (7200, 1)
"""Transaction-level advisory lock held by the process that migrates."""
LOCK_TIMEOUT_MS = 500
"""An attempt waits so long for a table; agents queue behind it meanwhile. It is less than Postgres' deadlock_timeout
(1 s), so that no transaction of theirs is ended when both wait for each other."""
ATTEMPTS_MAX = 20
PAUSE_S_MAX = 1.0
"""Longest pause in seconds between attempts, at most; an attempt that does not get a table undoes what it did."""

_TABLES = """SELECT relname::text FROM pg_class
 WHERE relname = ANY (%s) AND relkind IN ('r', 'p') AND relnamespace = current_schema()::regnamespace
 ORDER BY relname"""

NO_VALUES: Mapping[str, str] = MappingProxyType({})

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What a run did (`applied`, in order) and what the cluster is."""

    applied: tuple[str, ...]
    cluster_id: str
    incarnation_id: uuid.UUID
    commit_shards: int

    def __str__(self) -> str:
        done = ",".join(self.applied) or "nothing to do"
        return f"migrated: applied={done} cluster_id={self.cluster_id} commit_shards={self.commit_shards}"


def migrate(
    url: str,
    *,
    commit_shards: int = 8,
    cluster_id: str | None = None,
    values: Mapping[str, str] = NO_VALUES,
    pause: Callable[[float], None] = time.sleep,
) -> MigrationReport:
    """Apply what is missing, install the functions, and make the cluster's first rows.

    `commit_shards` and `values` (settings of the cluster) count only for a new cluster. `cluster_id` is a base64url
    UUID; None takes a random one. InvalidError when Postgres is too old or not in UTF8, a recorded migration
    has changed or is unknown to this version, or the cluster has another id; UnavailableError when Postgres is not
    there, or another session locks a table for long (a dump): what is missing stays missing, and a later run continues.
    """
    with translated("migrate", writes=False), connected(url, autocommit=True) as connection:
        for attempt in count(1):
            try:
                with connection.transaction():
                    applied = _apply_missing(connection)
                    return _describe(connection, applied, commit_shards, cluster_id, values)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                if attempt == ATTEMPTS_MAX:
                    raise
            pause(random.SystemRandom().uniform(0, PAUSE_S_MAX))
        raise AssertionError("unreachable")


def _apply_missing(connection: Connection) -> tuple[str, ...]:
    """Apply the files that are missing and install all functions; the names of the files."""
    connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", LOCK)
    connection.execute("SET LOCAL standard_conforming_strings = on")
    recorded = _recorded(connection)
    _refuse_unknown(recorded)
    connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}".encode())
    files = sql_files(MIGRATIONS)
    _lock_tables(connection, [file for file in files if file.name not in recorded])
    applied = [file.name for file in files if _apply(connection, file, recorded)]
    connection.execute("SET LOCAL check_function_bodies = off")  # they call each other in any order
    for file in function_files():
        _execute_file(connection, file)
    return tuple(applied)


def _lock_tables(connection: Connection, files: Sequence[SqlFile]) -> None:
    """Lock all tables that the files touch before the first change. A run that took them one by one, between its
    statements, would nearly always find an agent under load that has one of them and waits for another."""
    named = {table for file in files for _, table, lock in locks(file) if lock != NONE}
    rows = connection.execute(_TABLES, (list(named),)).fetchall()
    if rows:
        tables = sql.SQL(", ").join(sql.Identifier(name) for (name,) in rows)
        try:
            connection.execute(sql.SQL("LOCK TABLE {}").format(tables))
        except psycopg.Error as error:
            error.add_note(f"at the lock of {', '.join(name for (name,) in rows)}")
            raise


def _apply(connection: Connection, file: SqlFile, recorded: Mapping[str, str]) -> bool:
    """Apply one file unless it is recorded; True when it was applied."""
    if file.name in recorded:
        if recorded[file.name] != file.checksum:
            raise InvalidError(f"migration changed after it was applied: {file.name}")
        return False
    _execute_file(connection, file)
    connection.execute("INSERT INTO schema_migrations (name, checksum) VALUES (%s, %s)", (file.name, file.checksum))
    return True


def _recorded(connection: Connection) -> dict[str, str]:
    connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_migrations"
        " (name text PRIMARY KEY, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
    )
    return dict(connection.execute("SELECT name, checksum FROM schema_migrations").fetchall())


def _refuse_unknown(recorded: dict[str, str]) -> None:
    unknown = sorted(recorded.keys() - {file.name for file in sql_files(MIGRATIONS)})
    if unknown:
        raise InvalidError(f"database is newer than this version: unknown_migrations={','.join(unknown)}")


def _execute_file(connection: Connection, file: SqlFile) -> None:
    try:
        connection.execute(file.text.encode())
    except psycopg.Error as error:
        error.add_note(f"in {file.name}.sql")
        raise


def _describe(
    connection: Connection,
    applied: tuple[str, ...],
    commit_shards: int,
    cluster_id: str | None,
    values: Mapping[str, str],
) -> MigrationReport:
    row = _read_cluster(connection)
    if row is None:
        _create_cluster(connection, commit_shards, cluster_id, values)
        row = _read_cluster(connection)
        assert row is not None
    found = MigrationReport(applied, *row)
    if cluster_id not in (None, found.cluster_id):
        raise InvalidError(f"database belongs to another cluster: wanted={cluster_id} found={found.cluster_id}")
    return found


def _read_cluster(connection: Connection) -> tuple[str, uuid.UUID, int] | None:
    cursor = connection.execute("SELECT cluster_id, incarnation_id, commit_shards FROM cluster")
    return cursor.fetchone()


def _create_cluster(
    connection: Connection, commit_shards: int, cluster_id: str | None, values: Mapping[str, str]
) -> None:
    """The rows without which no agent can work."""
    connection.execute(
        "INSERT INTO cluster (cluster_id, incarnation_id, commit_shards) VALUES (%s, gen_random_uuid(), %s)",
        (cluster_id or random_cluster_id(random.SystemRandom()), commit_shards),
    )
    features = [
        FeatureLevelRecord(name=name, min_feature_level=newest.min_level, max_feature_level=newest.max_level)
        for name, newest in SUPPORTED_FEATURES.items()
    ]
    connection.cursor().executemany(
        "INSERT INTO features (name, min_level, max_level) VALUES (%s, %s, %s)",
        [(name, *newest) for name, newest in SUPPORTED_FEATURES.items()],
    )
    records = [*features, *(setting_record(name, value) for name, value in values.items())]
    connection.execute("INSERT INTO metadata_head (next_offset) VALUES (%s)", (len(records),))
    connection.cursor().executemany(
        "INSERT INTO metadata_log (record_offset, record, appended_at) VALUES (%s, %s, clock_timestamp())",
        [(offset, encode_record(record)) for offset, record in enumerate(records)],
    )
    connection.cursor().executemany(
        "INSERT INTO configs (resource_type, resource_name, name, value) VALUES (%s, %s, %s, %s)",
        [(BROKER_RESOURCE, WHOLE_CLUSTER, name, value) for name, value in values.items()],
    )
    connection.execute(
        "INSERT INTO commit_shards (shard, seq) SELECT shard, 0 FROM generate_series(0, %s - 1) AS shard",
        (commit_shards,),
    )
    connection.execute(
        "INSERT INTO lease_watch (last_contact_at, resumed_at) VALUES (clock_timestamp(), clock_timestamp())"
    )
    # tick 0 is long before any real slot: the first rotation clears all of them
    connection.execute("INSERT INTO log_slots (name, cleared_tick) VALUES ('commit_log', 0), ('commit_answers', 0)")
