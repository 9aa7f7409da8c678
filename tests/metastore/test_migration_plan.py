"""`headrace migrate --plan`: what it says, and that a migration does nothing that it did not say."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from headrace.cli.main import main
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import MIGRATIONS, NONE, locks, migrate, plan_migration
from headrace.metastore.postgres.sql_files import SqlFile, sql_files
from headrace.storage.errors import InvalidError

LAST_OF_THE_PREVIOUS_RELEASE = "0019_cleaning_by_key"
STRENGTHS = {NONE: 0, "ROW EXCLUSIVE": 3, "SHARE": 5, "ACCESS EXCLUSIVE": 8}
MODES = {"RowExclusiveLock": 3, "ShareLock": 5, "ShareRowExclusiveLock": 6, "AccessExclusiveLock": 8}


@pytest.fixture
def empty_database(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    with psycopg.connect(postgres_server.url(), autocommit=True) as raw:
        raw.execute("CREATE DATABASE to_be_planned")
        yield postgres_server.url("to_be_planned")
        raw.execute("DROP DATABASE to_be_planned WITH (FORCE)")


def test_no_migration_takes_a_lock_on_a_table_of_before_that_its_plan_does_not_name(empty_database: str) -> None:
    """Each file alone, with what Postgres itself says of the locks that it took."""
    with psycopg.connect(empty_database, autocommit=True) as raw:
        for file in sql_files(MIGRATIONS):
            tables = {name for (name,) in raw.execute("SELECT relname FROM pg_class WHERE relkind = 'r'")}
            with raw.transaction():
                raw.execute(file.text.encode())
                taken = raw.execute(
                    "SELECT c.relname, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
                    " WHERE l.pid = pg_backend_pid() AND l.granted AND c.relkind = 'r' AND c.relnamespace ="
                    " 'public'::regnamespace"
                ).fetchall()
            planned: dict[str, int] = {}
            for _, table, lock in locks(file):
                planned[table] = max(planned.get(table, 0), STRENGTHS[lock])
            for table, mode in taken:
                if table in tables and MODES.get(mode, 0) > planned.get(table, 0):
                    # a foreign key or an expression may lock another table, but never against readers and writers
                    assert MODES[mode] <= STRENGTHS["SHARE"], (file.name, table, mode)


def test_a_new_database_and_a_migrated_one(empty_database: str, capsys: pytest.CaptureFixture[str]) -> None:
    fresh = plan_migration(empty_database)
    assert {step.migration for step in fresh.steps} == {file.name for file in sql_files(MIGRATIONS)}
    migrate(empty_database)
    assert main(["migrate", "--plan", "--metastore-url", empty_database]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("no migration is missing\n")
    assert "waits for a table at most 0.5 s" in shown


def test_a_missing_migration_is_planned_and_not_applied(metastore_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with psycopg.connect(metastore_url, autocommit=True) as raw:
        raw.execute("DELETE FROM schema_migrations WHERE name = '0022_hidden_agents'")
        raw.execute("ALTER TABLE agents DROP COLUMN hidden, DROP COLUMN hidden_before")
        assert main(["migrate", "--plan", "--metastore-url", metastore_url]) == 0
        (line, *_) = capsys.readouterr().out.splitlines()
        assert line.startswith("0022_hidden_agents: ALTER TABLE agents · lock: ACCESS EXCLUSIVE · table: ")
        assert migrate(metastore_url).applied == ("0022_hidden_agents",)


def test_a_newer_database_is_refused(metastore_url: str) -> None:
    with psycopg.connect(metastore_url, autocommit=True) as raw:
        raw.execute("INSERT INTO schema_migrations (name, checksum) VALUES ('9999_future', '')")
    with pytest.raises(InvalidError, match="newer than this version: unknown_migrations=9999_future"):
        plan_migration(metastore_url)


def test_a_statement_without_a_known_lock_is_an_error() -> None:
    with pytest.raises(InvalidError, match="no lock is known"):
        locks(SqlFile("9999_odd", "VACUUM agents;"))


@pytest.mark.requirement("X9")
def test_migrations_only_add_what_agents_of_the_previous_release_do_not_need() -> None:
    """They run on the new schema until they are upgraded: what they use goes one release later."""
    new = [file for file in sql_files(MIGRATIONS) if file.name > LAST_OF_THE_PREVIOUS_RELEASE]
    assert new
    for file in new:
        words = " ".join(line.split("--")[0] for line in file.text.splitlines()).upper()
        for taken_away in (" DROP ", "DROP ", " RENAME ", " SET NOT NULL", " TYPE "):
            assert taken_away not in words, (file.name, taken_away)
