"""Migrations: applied once, in order, under a lock, and never changed."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from headrace.metastore.postgres import migrate as module
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import MigrationReport, migrate
from headrace.metastore.postgres.sql_files import SqlFile, sql_files
from headrace.storage.errors import InvalidError, UnavailableError


@pytest.fixture
def empty_url(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """A database without a schema."""
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE empty")
        yield postgres_server.url("empty")
        connection.execute("DROP DATABASE empty WITH (FORCE)")


def _value(url: str, sql: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(sql.encode()).fetchone()
    assert row is not None
    return row[0]


def test_a_new_database_gets_everything_and_a_second_run_finds_nothing_to_do(empty_url: str) -> None:
    first = migrate(empty_url, commit_shards=3)
    again = migrate(empty_url, commit_shards=8)

    assert first.applied == tuple(file.name for file in sql_files(module.MIGRATIONS))
    assert again == MigrationReport((), first.cluster_id, first.incarnation_id, 3)
    assert len(base64.urlsafe_b64decode(first.cluster_id + "==")) == 16
    assert _value(empty_url, "SELECT array_agg(shard ORDER BY shard) FROM commit_shards WHERE seq = 0") == [0, 1, 2]
    assert _value(empty_url, "SELECT next_offset FROM metadata_head") == 8, (
        "the log says which format and features it has"
    )
    assert _value(empty_url, "SELECT array_agg(name ORDER BY name) FROM log_slots") == ["commit_answers", "commit_log"]


def test_two_processes_migrating_at_once_both_succeed_with_one_cluster(empty_url: str) -> None:
    reports: list[MigrationReport] = []
    threads = [threading.Thread(target=lambda: reports.append(migrate(empty_url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(reports) == 4
    assert len({report.cluster_id for report in reports}) == 1
    applied = [name for report in reports for name in report.applied]
    assert sorted(applied) == [file.name for file in sql_files(module.MIGRATIONS)]


def test_a_table_that_is_read_for_long_is_not_waited_for(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dump, for example: agents would queue behind the migration for as long as it lasts."""
    monkeypatch.setattr(module, "LOCK_TIMEOUT_MS", 20)
    every, newest = sql_files, "0024_deleted_partitions_have_keys"
    with monkeypatch.context() as patch:  # without the functions: some need later migrations
        patch.setattr(module, "sql_files", lambda place: [file for file in every(place) if file.name < newest])
        patch.setattr(module, "function_files", tuple)
        migrate(empty_url)
    with psycopg.connect(empty_url) as dump:
        dump.execute("SELECT FROM deleted_partitions")
        with pytest.raises(UnavailableError, match="deleted_partitions"):
            migrate(empty_url, pause=lambda _: None)
    assert migrate(empty_url).applied[0] == newest


def test_a_table_that_is_read_for_a_moment_is_tried_again(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT_MS", 20)
    migrate(empty_url)
    later = SqlFile("0999_later", "CREATE TABLE later (); ALTER TABLE quota_use ADD COLUMN later int;")
    every, pauses = sql_files, []
    monkeypatch.setattr(module, "sql_files", lambda place: [*every(place), later])
    with psycopg.connect(empty_url) as reader:
        reader.execute("SELECT FROM quota_use")

        def read_on(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                reader.rollback()

        assert migrate(empty_url, pause=read_on).applied == (later.name,)
    assert len(pauses) == 3


def test_a_run_and_an_agent_that_wait_for_each_other_both_end_well(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent holds the table that the run needs second, and asks for the one that the run takes first."""
    migrate(empty_url)
    later = SqlFile("0999_later", "UPDATE quota_use SET node_id = 1; UPDATE cluster SET commit_shards = 8;")
    every = sql_files
    monkeypatch.setattr(module, "sql_files", lambda place: [*every(place), later])
    with psycopg.connect(empty_url) as agent, ThreadPoolExecutor(1) as executor:
        agent.execute("SELECT FROM quota_use")
        running = executor.submit(migrate, empty_url)
        with psycopg.connect(empty_url, autocommit=True) as watch:
            waiting = "SELECT 1 FROM pg_locks WHERE relation = 'quota_use'::regclass AND NOT granted"
            while not watch.execute(waiting.encode()).fetchone():
                assert not running.done()
        agent.execute("SELECT FROM cluster")
        agent.rollback()
        assert running.result().applied == (later.name,)


def test_a_changed_migration_is_refused_by_name(empty_url: str) -> None:
    migrate(empty_url)
    with psycopg.connect(empty_url) as connection:
        connection.execute("UPDATE schema_migrations SET checksum = 'other' WHERE name = '0001_initial'")

    with pytest.raises(InvalidError, match="0001_initial"):
        migrate(empty_url)


def test_a_migration_of_a_newer_version_is_refused_by_name(empty_url: str) -> None:
    migrate(empty_url)
    with psycopg.connect(empty_url) as connection:
        connection.execute("INSERT INTO schema_migrations (name, checksum) VALUES ('0999_later', 'x')")

    with pytest.raises(InvalidError, match="0999_later"):
        migrate(empty_url)


def test_a_failing_migration_leaves_nothing_and_names_its_file(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = SqlFile("0001_good", "CREATE TABLE good ();"), SqlFile("0002_bad", "CREATE TABLE bad (); SELECT 1/0;")
    monkeypatch.setattr(module, "sql_files", lambda _: [good, bad])

    with pytest.raises(InvalidError, match="0002_bad"):
        migrate(empty_url)

    tables = "to_regclass('good'), to_regclass('bad'), to_regclass('schema_migrations')"
    assert _value(empty_url, f"SELECT num_nulls({tables})") == 3


def test_a_cluster_id_is_kept_and_another_one_refused(empty_url: str) -> None:
    given = "3Db5QLSqSZieL3rJBUUegA"
    assert migrate(empty_url, cluster_id=given).cluster_id == given
    assert migrate(empty_url, cluster_id=given).cluster_id == given
    with pytest.raises(InvalidError, match=given):
        migrate(empty_url, cluster_id="AAAAAAAAAAAAAAAAAAAAAA")


def test_an_unreachable_server_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="migrate failed"):
        migrate("postgresql://headrace@127.0.0.1:1/nowhere")
