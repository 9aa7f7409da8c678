"""What `headrace migrate` would do to a database: the files that it lacks, their statements, and the locks.

Place: `headrace migrate --plan`; reads the database, changes nothing, and waits for a lock only
for seconds.
Invariant: a statement of which the lock is not known is an error, so that a plan never says less than the migration
does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.metastore.postgres.errors import translated
from headrace.metastore.postgres.migrate import ATTEMPTS_MAX, LOCK_TIMEOUT_MS, MIGRATIONS
from headrace.metastore.postgres.migration_locks import locks
from headrace.metastore.postgres.single_connection import reading
from headrace.metastore.postgres.sql_files import function_files, sql_files
from headrace.storage.errors import InvalidError


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


def _recorded(connection: psycopg.Connection[tuple[Any, ...]]) -> set[str]:
    (there,) = connection.execute("SELECT to_regclass('schema_migrations') IS NOT NULL").fetchall()[0]
    return {name for (name,) in connection.execute("SELECT name FROM schema_migrations")} if there else set()


def _size(connection: psycopg.Connection[tuple[Any, ...]], table: str) -> int:
    rows = connection.execute("SELECT coalesce(pg_total_relation_size(to_regclass(%s)), 0)", (table,)).fetchall()
    return int(rows[0][0])
