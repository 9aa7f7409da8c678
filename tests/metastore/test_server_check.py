"""A Postgres that is too old or only reads is refused; one that may lose rows, or is nearly full, is named."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from headrace.cli.doctor.findings import Level
from headrace.cli.doctor.postgres import examine
from headrace.cli.main import main
from headrace.config.settings import Settings
from headrace.metastore.api.agents import AgentRegistration, Listener
from headrace.metastore.postgres import server_check
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.formatted import formatted_cluster_id
from headrace.metastore.postgres.migrate import migrate, plan_migration
from headrace.metastore.postgres.server_check import ServerFacts, check_encoding, check_version, problems_of
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError, UnavailableError
from tests.metastore.sessions import beat
from tests.metastore.test_postgres_versions import commit_and_find
from tests.pgbouncer import SERVER_CONNECTIONS

ONE = Settings(metastore_pool_size=1)
SAFE = ServerFacts(True, True, "on", max_connections=100, reserved_connections=3, connections=10)


@pytest.fixture
def own_server() -> Iterator[EmbeddedPostgres]:
    """A durable server for one test, stopped."""
    with tempfile.TemporaryDirectory(prefix="headrace-check-") as directory:
        Path(directory).chmod(0o711)
        server = EmbeddedPostgres(Path(directory))
        yield server
        server.stop()


async def open_and_close(url: str, settings: Settings = ONE) -> None:
    await (await PostgresMetastore.open(url, settings)).close()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"fsync": False}, "fsync=off"),
        ({"full_page_writes": False}, "full_page_writes=off"),
        ({"synchronous_commit": "off"}, "synchronous_commit=off"),
        ({"connections": 90}, "max_connections=100 is small: open=90 free=7 needed=8"),
        ({"connections": 99}, "free=0"),
    ],
)
def test_each_problem_is_named(change: dict[str, bool], named: str) -> None:
    (problem,) = problems_of(SAFE._replace(**change), connections=8)
    assert named in problem


@pytest.mark.parametrize("synchronous_commit", ["on", "local", "remote_write", "remote_apply"])
def test_a_safe_server_has_no_problem(synchronous_commit: str) -> None:
    """A standby's share in a commit is the operator's choice."""
    assert problems_of(SAFE._replace(synchronous_commit=synchronous_commit, connections=89), connections=8) == []


def test_the_oldest_version_is_15() -> None:
    check_version(150_000)
    check_version(180_004)
    with pytest.raises(InvalidError, match=r"too old: version=14\.19 needed=15"):
        check_version(140_019)


async def test_an_old_server_is_refused_by_agents_and_by_migrate(
    metastore_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_check, "OLDEST_MAJOR", 99)
    with pytest.raises(InvalidError, match="needed=99"):
        await open_and_close(metastore_url)
    with pytest.raises(InvalidError, match="needed=99"):
        migrate(metastore_url)


@contextmanager
def _database(server: EmbeddedPostgres, encoding: str, *settings: str) -> Iterator[str]:
    """An empty database of the server, with these settings."""
    name = f"encoded_{encoding}".lower()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0".encode())
        for setting in settings:
            connection.execute(f"ALTER DATABASE {name} SET {setting}".encode())
        try:
            yield server.url(name)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_database_in_another_encoding_is_refused_everywhere(
    postgres_server: EmbeddedPostgres, encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is read as bytes "belongs to another cluster"; another ends connections at a name it does not have."""
    reason = f"the database's encoding is {encoding}"
    with _database(postgres_server, encoding) as url:
        with pytest.raises(InvalidError, match=reason):
            migrate(url)
        with pytest.raises(InvalidError, match=reason):
            formatted_cluster_id(url)
        with pytest.raises(InvalidError, match=reason):
            plan_migration(url)
        with pytest.raises(InvalidError, match=reason):
            await open_and_close(url)
        (finding,) = await examine(Settings(metastore_url=url), SystemClock())
        assert (finding.check, finding.level) == ("encoding", Level.BAD)
        assert reason in finding.found
        words = ["--metastore-url", url, "--bucket", tmp_path.as_uri()]
        assert await asyncio.to_thread(main, ["storage", "format", "-t", "8XUwXa9qSyi9tSOquGtauQ", *words]) == 1
        assert reason in capsys.readouterr().err


def test_a_pooler_that_does_not_tell_the_encoding_is_no_reason() -> None:
    check_encoding(None)
    check_encoding("UTF8")


async def test_settings_of_the_database_do_not_change_what_the_sql_means(
    postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions have literals with backslashes, and names come in UTF-8."""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    settings = ("standard_conforming_strings = off", "client_encoding = 'LATIN1'", "bytea_output = 'escape'")
    with _database(postgres_server, "UTF8", *settings) as url:
        migrate(url)
        store = await PostgresMetastore.open(url, ONE)
        listeners = (Listener("PLAINTEXT", "127.0.0.1", 1, 0),)
        agent = await store.cluster.register_agent(
            AgentRegistration(7, uuid.uuid4(), "127.0.0.1", 1, None, listeners=listeners)
        )
        assert not (await beat(store, agent)).is_fenced
        async with store.pool.connection() as connection:
            query = r"SELECT current_setting('client_encoding'), '\x41'::bytea, 'д'"
            row = await (await connection.execute(query)).fetchone()
        assert row == ("UTF8", b"A", "д")
        await store.close()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_database_in_another_encoding_is_refused_behind_a_pooler(
    postgres_server: EmbeddedPostgres, pooler_port: int, encoding: str
) -> None:
    with _database(postgres_server, encoding) as url:
        pooled = _behind(postgres_server, url, pooler_port)
        with pytest.raises(InvalidError, match=f"the database's encoding is {encoding}"):
            migrate(pooled)
        with pytest.raises(InvalidError, match=f"the database's encoding is {encoding}"):
            await open_and_close(pooled)
        (finding,) = await examine(Settings(metastore_url=pooled), SystemClock())
        assert (finding.check, finding.level) == ("encoding", Level.BAD)


async def test_settings_of_the_database_do_not_change_what_the_sql_means_behind_a_pooler(
    postgres_server: EmbeddedPostgres, pooler_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pooler ignores start-up options, and its server connections go round among clients with other settings."""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with _database(postgres_server, "UTF8", "standard_conforming_strings = off", "client_encoding = 'LATIN1'") as url:
        pooled = _behind(postgres_server, url, pooler_port)
        migrate(pooled)
        store = await PostgresMetastore.open(pooled, Settings(metastore_pool_size=2 * SERVER_CONNECTIONS))
        other = await psycopg.AsyncConnection.connect(pooled, autocommit=True, client_encoding="LATIN1")
        try:
            for _ in range(4 * SERVER_CONNECTIONS):
                mine = [_meaning(store) for _ in range(2 * SERVER_CONNECTIONS)]
                theirs, *found = await asyncio.gather(other.execute(WITH_ESCAPES), *mine, return_exceptions=True)
                assert found == [("UTF8", rb"\x41", "д")] * len(mine)
                assert isinstance(theirs, psycopg.AsyncCursor)
                assert await theirs.fetchone() == ("LATIN1", b"A")
            await commit_and_find(store)
        finally:
            await other.close()
            await store.close()


WITH_ESCAPES = rb"SELECT current_setting('client_encoding'), '\\x41'::bytea"
"""Two backslashes are one where strings have escapes, and the bytes are hexadecimal then."""


async def _meaning(store: PostgresMetastore) -> tuple[Any, ...] | None:
    async with store.pool.connection() as connection:
        return await (await connection.execute(WITH_ESCAPES + b", chr(1076)")).fetchone()


def _behind(server: EmbeddedPostgres, url: str, port: int) -> str:
    """The same database by way of the pooler."""
    return server.tcp_url(urlsplit(url).path.lstrip("/"), port)


async def test_a_durable_server_is_opened_without_a_word_and_others_are_named(
    own_server: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger=server_check.__name__)
    migrate(own_server.start())
    await open_and_close(own_server.url())
    assert caplog.messages == []
    with psycopg.connect(own_server.url(), autocommit=True) as connection:
        connection.execute("ALTER ROLE headrace SET synchronous_commit = off")
        connection.execute("ALTER SYSTEM SET full_page_writes = off")
    own_server.stop()
    own_server.fsync = False
    await open_and_close(own_server.start(), Settings(metastore_pool_size=100))
    settings = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "max_connections=200 is small")
    assert len(caplog.messages) == len(settings)
    assert all(name in message for name, message in zip(settings, caplog.messages, strict=True))


async def test_a_hot_standby_is_refused(own_server: EmbeddedPostgres) -> None:
    """It has no primary, so it waits for write-ahead log and answers reads, as one with a primary does."""
    migrate(own_server.start())
    own_server.stop()
    ((own_server.data_dir / "pgdata").resolve() / "standby.signal").touch()
    own_server.start()
    with pytest.raises(UnavailableError, match="read-only"):
        await open_and_close(own_server.url())
    with pytest.raises(UnavailableError, match="read-only"):
        migrate(own_server.url())
