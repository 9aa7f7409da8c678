"""A test finds a database as the template is, although tests before it changed it (tests/kept_databases.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.conftest import Copies
from tests.kept_databases import Database, KeptDatabases, keep

TABLES = "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 1"
COLUMNS = (
    "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute"
    " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
)
FUNCTIONS = "SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc WHERE oid >= 16384 ORDER BY 1"
VALUES = {
    "text": "a",
    "bytea": "\\x00",
    "boolean": True,
    "uuid": "00000000-0000-0000-0000-000000000001",
    "timestamp with time zone": "2026-01-01",
    "jsonb": {},
}
"""Of a row; other types have numbers, and arrays none."""
TABLES_WITH_A_ROW = 50
STILL_CLOCK = "CREATE OR REPLACE FUNCTION wall_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE RETURN 7"
Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def kept(copies: Copies) -> Iterator[KeptDatabases]:
    databases = KeptDatabases(copies)
    yield databases
    databases.close()


def content(connection: Connection) -> dict[str, Any]:
    """Return what a test can read: rows, the numbers of sequences, and functions."""
    found: dict[str, Any] = {}
    for (table,) in connection.execute(TABLES).fetchall():
        rows = sql.SQL("SELECT t::text FROM {} AS t ORDER BY 1").format(sql.Identifier(table))
        found[table] = connection.execute(rows).fetchall()
    found["sequences"] = connection.execute("SELECT sequencename, last_value FROM pg_sequences ORDER BY 1").fetchall()
    found["functions"] = connection.execute(FUNCTIONS).fetchall()
    return found


def change_all(connection: Connection) -> int:
    """Delete a row of each table that has some, and insert one into each other; return how many have changed."""
    changed = 0
    for (table,) in connection.execute(TABLES).fetchall():
        name = sql.Identifier(table)
        delete = sql.SQL("DELETE FROM {0} WHERE ctid = (SELECT min(ctid) FROM {0})").format(name)
        if connection.execute(delete).rowcount:
            changed += 1
            continue
        row = {column: _value(kind) for column, kind in connection.execute(COLUMNS, (table,)).fetchall()}
        insert = sql.SQL("INSERT INTO {0} OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(NULL::{0}, %s)).*")
        try:
            changed += connection.execute(insert.format(name), (Jsonb(row),)).rowcount
        except psycopg.errors.CheckViolation:
            continue
    connection.execute("SELECT nextval('segment_epochs'), nextval('group_coordinator_epochs')")
    connection.execute(STILL_CLOCK)
    connection.execute("ALTER FUNCTION claim_job COST 7")
    return changed


def _value(kind: str) -> object:
    return [] if kind.endswith("[]") else VALUES.get(kind, 1)


def begun(database: Database) -> Connection:
    return psycopg.connect(database.url, autocommit=True)


def used(kept: KeptDatabases, *statements: str) -> str:
    """Run them in a database that is kept if it may be; return its address."""
    with kept.one() as database:
        connection = begun(database)
        for statement in statements:
            connection.execute(statement.encode())
        keep(database, [connection])  # type: ignore[list-item]
        return database.url


def test_rows_sequences_and_functions_are_those_of_the_template(kept: KeptDatabases) -> None:
    with kept.one() as database:
        connection = begun(database)
        before = content(connection)
        assert change_all(connection) >= TABLES_WITH_A_ROW
        assert content(connection) != before
        connection.execute("SET work_mem = '1MB'")
        connection.execute("SELECT pg_advisory_lock(1)")
        keep(database, [connection])  # type: ignore[list-item]
        first = database.url
    with kept.one() as database:
        assert database.url == first
        with begun(database) as connection:
            assert content(connection) == before
            assert connection.execute("SELECT pg_try_advisory_lock(1)").fetchone() == (True,)


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE another ()",
        "ALTER TABLE jobs ADD COLUMN another int",
        "ALTER TABLE jobs DROP CONSTRAINT jobs_pkey",
        "CREATE FUNCTION another() RETURNS int LANGUAGE sql RETURN 1",
        "DROP FUNCTION wall_ms CASCADE",
        "GRANT EXECUTE ON FUNCTION claim_job TO pg_monitor",
        "GRANT SELECT ON jobs TO pg_monitor",
        "CREATE SCHEMA another",
        "ANALYZE",
        "TRUNCATE jobs",
    ],
)
def test_a_database_with_another_definition_is_not_used_again(kept: KeptDatabases, change: str) -> None:
    assert used(kept, change) != used(kept)


def test_a_session_that_began_with_settings_of_the_database_is_not_used_again(kept: KeptDatabases) -> None:
    with kept.one() as database:
        first, name = database.url, sql.Identifier(database.name)
        with begun(database) as connection:
            connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = on").format(name))
        session = begun(database)
        session.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(name))
        keep(database, [session])  # type: ignore[list-item]
    assert used(kept) != first


def test_no_other_session_remains(kept: KeptDatabases) -> None:
    with kept.one() as database:
        left = begun(database)
        keep(database, [begun(database)])  # type: ignore[list-item]
    with pytest.raises(psycopg.OperationalError):
        left.execute("SELECT 1")
    assert used(kept) == database.url
