"""What `headrace migrate` would do to a database: the files that it lacks, their statements, and the locks.

Place: `headrace migrate --plan`; reads the database, changes nothing, and waits for no lock.
Invariant: it names a lock for every statement of a migration; a statement that it does not know is an error, so that a
plan never says less than the migration does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.metastore.postgres.errors import translated
from headrace.metastore.postgres.migrate import ATTEMPTS_MAX, LOCK_TIMEOUT_MS, MIGRATIONS
from headrace.metastore.postgres.server_check import check_version
from headrace.metastore.postgres.sql_files import SqlFile, function_files, sql_files
from headrace.storage.errors import InvalidError

ACCESS_EXCLUSIVE, SHARE, ROW_EXCLUSIVE, NONE = "ACCESS EXCLUSIVE", "SHARE", "ROW EXCLUSIVE", "none"
_KINDS = (
    (re.compile(r"(ALTER TABLE)(?: IF EXISTS)?(?: ONLY)? (\w+)", re.I), ACCESS_EXCLUSIVE),
    (re.compile(r"(DROP TABLE)(?: IF EXISTS)? (\w+)", re.I), ACCESS_EXCLUSIVE),
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
        """For people: one line for each statement, and what holds for all of them."""
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
    with translated("plan migration", writes=False), psycopg.connect(url, connect_timeout=10) as connection:
        connection.execute("SET TRANSACTION READ ONLY")
        check_version(connection.info.server_version)
        recorded = _recorded(connection)
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


def locks(file: SqlFile) -> list[tuple[str, str, str]]:
    """(statement, table, lock) for each statement of a migration. InvalidError for a statement that is not known."""
    return [_lock(file.name, statement) for statement in _statements(file.text)]


def _statements(text: str) -> list[str]:
    """Without comments; what is quoted may contain semicolons."""
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


def _recorded(connection: psycopg.Connection[tuple[Any, ...]]) -> set[str]:
    (there,) = connection.execute("SELECT to_regclass('schema_migrations') IS NOT NULL").fetchall()[0]
    return {name for (name,) in connection.execute("SELECT name FROM schema_migrations")} if there else set()


def _size(connection: psycopg.Connection[tuple[Any, ...]], table: str) -> int:
    rows = connection.execute("SELECT coalesce(pg_total_relation_size(to_regclass(%s)), 0)", (table,)).fetchall()
    return int(rows[0][0])
