"""Brings a database to this version's schema: numbered files forward, then functions, then first rows.

Place: `headrace migrate` and `headrace dev`, before any agent of this version starts. `headrace migrate --plan`
shows what a run would do: it reads the database, changes nothing, and waits for a lock only for seconds.
Invariant of locks: it names a lock for every statement of a migration; a statement that it does not know is an
error.
Invariant: one run is one transaction: agents that run meanwhile see the old tables and functions, or all new ones.
Files are applied in order, once, and never change after that (their checksums are recorded). Functions carry no
state and are replaced each time. Two processes that migrate at once wait for each other. A run takes all its tables
first. Under load it may not get them, or agents wait for it while it waits for them: it undoes itself and tries
again.
Invariant of a plan: a statement of which the lock is not known is an error, so that a plan never says less than the
migration does.
"""

from __future__ import annotations

import random
import re
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
from headrace.metastore.postgres.pool import connected, reading
from headrace.metastore.postgres.sql_files import SqlFile, function_files, sql_files
from headrace.storage.cluster_properties import random_cluster_id
from headrace.storage.errors import InvalidError

ACCESS_EXCLUSIVE, SHARE, ROW_EXCLUSIVE, NONE = "ACCESS EXCLUSIVE", "SHARE", "ROW EXCLUSIVE", "none"
_KINDS = (
    (re.compile(r"(ALTER TABLE)(?: IF EXISTS)?(?: ONLY)? (\w+)", re.I), ACCESS_EXCLUSIVE),
    (re.compile(r"(DROP TABLE)(?: IF EXISTS)? (\w+)", re.I), ACCESS_EXCLUSIVE),
    (re.compile(r"(LOCK TABLE) (\w+)", re.I), ACCESS_EXCLUSIVE),
    (re.compile(r"(TRUNCATE)(?: TABLE)? (\w+)", re.I), ACCESS_EXCLUSIVE),
    (re.compile(r"(DROP INDEX)(?: IF EXISTS)? (\w+)", re.I), ACCESS_EXCLUSIVE),
    (re.compile(r"(ALTER INDEX) (\w+)", re.I), ACCESS_EXCLUSIVE),
    (re.compile(r"(CREATE (?:UNIQUE )?INDEX)(?: IF NOT EXISTS)? \w+ ON (\w+)", re.I), SHARE),
    (re.compile(r"(UPDATE) (\w+)", re.I), ROW_EXCLUSIVE),
    (re.compile(r"(INSERT INTO) (\w+)", re.I), ROW_EXCLUSIVE),
    (re.compile(r"(DELETE FROM) (\w+)", re.I), ROW_EXCLUSIVE),
    (re.compile(r"(WITH) (\w+)", re.I), ROW_EXCLUSIVE),
    (re.compile(r"(CREATE (?:UNLOGGED )?TABLE)(?: IF NOT EXISTS)? (\w+)", re.I), NONE),
    (re.compile(r"(CREATE SEQUENCE)(?: IF NOT EXISTS)? (\w+)", re.I), NONE),
    (re.compile(r"(CREATE TYPE) (\w+)", re.I), NONE),
    (re.compile(r"(DROP TYPE)(?: IF EXISTS)? (\w+)", re.I), NONE),
    (re.compile(r"(CREATE (?:OR REPLACE )?(?:FUNCTION|VIEW)) (\w+)", re.I), NONE),
    (re.compile(r"(DROP (?:FUNCTION|VIEW))(?: IF EXISTS)? (\w+)", re.I), NONE),
    (re.compile(r"(COMMENT ON \w+) (\w+)", re.I), NONE),
    (re.compile(r"(SELECT) (\w+)", re.I), ROW_EXCLUSIVE),
    (re.compile(r"(DO) (\$\w*\$)", re.I), ROW_EXCLUSIVE),
)
_TEXT = re.compile(r"--[^\n]*|(\$\w*\$).*?\1|'(?:[^']|'')*'|;", re.S)


def locks(file: SqlFile) -> list[tuple[str, str, str]]:
    """(statement, table, lock) for each statement of a migration. InvalidError for a statement that is not known."""
    return [_lock(file.name, statement) for statement in _statements(file.text)]


def _statements(text: str) -> list[str]:
    """Return the statements without comments; what is quoted may contain semicolons."""
    found, start, kept = [], 0, list[str]()
    for match in _TEXT.finditer(text):
        kept.append(text[start : match.start()])
        start = match.end()
        if match[0] == ";":
            found.append("".join(kept))
            kept = []
        elif not match[0].startswith("--"):
            kept.append(match[0])
    found.append("".join(kept) + text[start:])
    return [" ".join(statement.split()) for statement in found if statement.strip()]


def _lock(migration: str, statement: str) -> tuple[str, str, str]:
    for pattern, lock in _KINDS:
        if match := pattern.match(statement):
            return match[1].upper(), match[2], lock
    raise InvalidError(f"no lock is known for a statement: migration={migration} statement={statement[:60]!r}")


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


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of a migration. `size_bytes`: of the table that it locks, with its indexes; 0 for a new one."""

    migration: str
    statement: str
    table: str
    lock: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """What is missing; no `steps`: only functions are replaced."""

    steps: tuple[Step, ...]
    functions: int

    def lines(self) -> list[str]:
        """Return the lines for people: one line for each statement, and what holds for all of them."""
        rows = [
            f"{step.migration}: {step.statement} {step.table} · lock: {step.lock} · table: {step.size_bytes:,} bytes"
            for step in self.steps
        ]
        return [
            *(rows or ["no migration is missing"]),
            f"functions: {self.functions} replaced, without locks on tables",
            f"all in one transaction, which waits for a table at most {LOCK_TIMEOUT_MS / 1000:g} s, then undoes itself"
            f" and begins again, {ATTEMPTS_MAX} times at most; agents that need a locked table wait meanwhile",
        ]


def plan_migration(url: str) -> MigrationPlan:
    """Errors as migrate; an empty database gets the plan of a new cluster."""
    with translated("plan migration", writes=False), reading(url) as connection:
        recorded = _recorded_names(connection)
        files = sql_files(MIGRATIONS)
        if unknown := sorted(recorded - {file.name for file in files}):
            raise InvalidError(f"database is newer than this version: unknown_migrations={','.join(unknown)}")
        steps = tuple(
            Step(file.name, statement, table, lock, _size(connection, table))
            for file in files
            if file.name not in recorded
            for statement, table, lock in locks(file)
        )
        return MigrationPlan(steps, sum(len(file.signatures) for file in function_files()))


def _recorded_names(connection: psycopg.Connection[tuple[Any, ...]]) -> set[str]:
    (there,) = connection.execute("SELECT to_regclass('schema_migrations') IS NOT NULL").fetchall()[0]
    return {name for (name,) in connection.execute("SELECT name FROM schema_migrations")} if there else set()


def _size(connection: psycopg.Connection[tuple[Any, ...]], table: str) -> int:
    rows = connection.execute("SELECT coalesce(pg_total_relation_size(to_regclass(%s)), 0)", (table,)).fetchall()
    return int(rows[0][0])
