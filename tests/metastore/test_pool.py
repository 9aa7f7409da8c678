"""The pool and its errors: what a lost connection, a slow statement or a paused process may cost."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from headrace.cli.doctor.postgres import address_of
from headrace.config.settings import Settings
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres import pool as module
from headrace.metastore.postgres.address import parsed
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.errors import translated
from headrace.metastore.postgres.pool import PoolMetrics, connected, open_pool
from headrace.metastore.postgres.server_check import check_server
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import AlreadyExistsError, InvalidError, OutcomeUnknownError, UnavailableError
from tests.metastore.sessions import Session, kill_session, new_topic

ROOT = Path(__file__).resolve().parents[2]
ONE = Settings(metastore_pool_size=1)
HASTY = Settings(metastore_pool_size=1, metastore_statement_timeout_ms=1_000, metastore_lock_timeout_ms=100)
"""Limits for what must take too long. The other tests are patient: a busy machine may take a second for anything."""


class Inline(Statement):
    """A statement from text instead of a file."""

    def __init__(self, sql: str, *, writes: bool) -> None:
        super().__init__("inline", writes=writes)
        self.__dict__["sql"] = sql.encode()


@pytest.fixture
async def pool(metastore_url: str) -> AsyncIterator[Pool]:
    opened = await open_pool(metastore_url, ONE)
    yield opened
    await opened.close()


@pytest.fixture
async def hasty(metastore_url: str) -> AsyncIterator[Pool]:
    opened = await open_pool(metastore_url, HASTY)
    yield opened
    await opened.close()


async def test_the_server_ends_what_takes_too_long(hasty: Pool) -> None:
    query = Inline(
        "SELECT current_setting('statement_timeout'), current_setting('lock_timeout'), current_setting('jit'),"
        " current_setting('idle_in_transaction_session_timeout'), current_setting('transaction_isolation')",
        writes=False,
    )
    assert await query.row(hasty) == ("1s", "100ms", "off", "5s", "read committed")
    with pytest.raises(UnavailableError, match="57014"):
        await Inline("SELECT pg_sleep(60)", writes=True).rows(hasty)


async def test_a_wait_for_a_lock_ends_and_did_nothing(hasty: Pool, raw: Session) -> None:
    async with raw.transaction():
        await raw.execute("SELECT lock_metadata_head()")
        with pytest.raises(UnavailableError, match="55P03"):
            await Inline("SELECT lock_metadata_head()", writes=True).rows(hasty)


async def test_metrics_show_that_a_pool_is_full(hasty: Pool) -> None:
    metrics, own = PoolMetrics(), CollectorRegistry()
    metrics.watch(hasty, "main")
    own.register(metrics)

    def shown(metric: str, registry: CollectorRegistry = own) -> float:
        return registry.get_sample_value(f"headrace_metastore_pool_{metric}", {"pool": "main"}) or 0.0

    assert shown("max_connections") == 1
    assert shown("max_connections", REGISTRY) >= 1, "opening a pool shows it, and other tests may have left some open"
    async with hasty.connection():
        waiting = asyncio.create_task(Inline("SELECT 1", writes=False).rows(hasty))
        while not shown("waiting"):
            assert not waiting.done()
            await asyncio.sleep(0)
        assert shown("busy_connections") == 1
        with pytest.raises(UnavailableError):
            await waiting
    assert (shown("failed_waits_total"), shown("waiting"), shown("busy_connections")) == (1, 0, 0)
    await hasty.close()
    assert shown("max_connections") == 0


async def test_a_full_pool_is_unavailable_and_says_so(hasty: Pool) -> None:
    async with hasty.connection():
        with pytest.raises(UnavailableError, match="couldn't get a connection"):
            await Inline("SELECT 1", writes=True).rows(hasty)


@pytest.mark.parametrize(("writes", "expected"), [(True, OutcomeUnknownError), (False, UnavailableError)])
async def test_a_connection_that_breaks_in_mid_statement(
    metastore_url: str, raw: Session, writes: bool, expected: type[Exception]
) -> None:
    patient = await open_pool(metastore_url, Settings(metastore_pool_size=1))
    query = asyncio.create_task(Inline("SELECT pg_sleep(60)", writes=writes).rows(patient))
    await kill_session(raw, "SELECT pg_sleep(60)")
    with pytest.raises(expected):
        await query
    assert await Inline("SELECT 1", writes=True).row(patient) == (1,), "the pool recovers"
    await patient.close()


async def test_a_call_that_is_cancelled_in_any_turn_of_its_wait_ends(pool: Pool) -> None:
    """Also in the turn that brings its connection: with Python 3.11 psycopg loses that cancellation."""
    asked = Inline("SELECT 1", writes=False)
    for turns in range(25):
        async with pool.connection():
            waiting = asyncio.create_task(_for_ever(asked, pool))
            for _ in range(1000):
                await asyncio.sleep(0)
            assert pool.get_stats()["requests_waiting"] == 1
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        ended, _ = await asyncio.wait({waiting}, timeout=600)
        assert ended, f"the cancellation got lost: turns={turns}"
        assert waiting.cancelled()
    assert pool.get_stats()["pool_available"] == 1, "no connection is lost either"


async def test_a_cancelled_wait_that_fails_is_cancelled(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection came in the same turn, was found broken, and there was no other in time."""

    async def lost_and_failed(self: Pool, timeout: float | None = None) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise PoolTimeout("no connection") from None

    monkeypatch.setattr(AsyncConnectionPool, "getconn", lost_and_failed)
    waiting = asyncio.create_task(_for_ever(Inline("SELECT 1", writes=False), pool))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_server_that_goes_away_while_it_is_checked_is_unavailable(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What opens the metastore then tries again, as in any outage."""

    async def none_in_time(self: Pool, timeout: float | None = None) -> None:
        raise PoolTimeout("no connection")

    monkeypatch.setattr(AsyncConnectionPool, "getconn", none_in_time)
    with pytest.raises(UnavailableError, match="connect failed"):
        await check_server(pool, connections=10)


def test_every_connection_of_a_pool_is_taken_where_errors_are_translated() -> None:
    """An error of psycopg without a translation ends a process that should have tried again."""
    takers = [
        path.relative_to(ROOT).as_posix()
        for folder in ("agent", "cli", "compactor", "metastore")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if re.search(r"(pool|readers|self)\.connection\(\)", path.read_text())
    ]
    assert takers == ["metastore/postgres/diagnosis/diagnosis.py", "metastore/postgres/statement.py"]
    assert all("with translated(" in (ROOT / path).read_text() for path in takers)


async def _for_ever(asked: Statement, pool: Pool) -> None:
    await asked.rows(pool)
    await asyncio.Event().wait()


async def test_calls_one_after_another_use_one_connection(metastore_url: str) -> None:
    pool = await open_pool(metastore_url, Settings(metastore_pool_size=4))
    asked = Inline("SELECT pg_backend_pid()", writes=False)
    assert len({await asked.row(pool) for _ in range(8)}) == 1
    await pool.close()


async def test_a_connection_that_broke_while_idle_is_replaced_before_use(pool: Pool, raw: Session) -> None:
    (pid,) = await Inline("SELECT pg_backend_pid()", writes=False).row(pool)
    await raw.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    (other,) = await Inline("SELECT pg_backend_pid()", writes=True).row(pool)
    assert other != pid


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1 / 0", InvalidError),
        ("SELECT nothing", InvalidError),
        ("SELECT 'x'::bigint", InvalidError),
        ("INSERT INTO cluster SELECT * FROM cluster", AlreadyExistsError),
        ("DO $$ BEGIN RAISE EXCEPTION 'no'; END $$", InvalidError),
        ("DO $$ BEGIN RAISE deadlock_detected; END $$", UnavailableError),
        ("DO $$ BEGIN RAISE disk_full; END $$", UnavailableError),
        ("DO $$ BEGIN RAISE read_only_sql_transaction; END $$", UnavailableError),
    ],
)
async def test_a_statement_that_the_server_rolled_back_is_never_in_doubt(
    pool: Pool, sql: str, expected: type[Exception]
) -> None:
    with pytest.raises(expected) as raised:
        await Inline(sql, writes=True).rows(pool)
    assert type(raised.value) is expected


async def test_parameters_that_cannot_be_sent_are_invalid(pool: Pool) -> None:
    with pytest.raises(InvalidError, match="adapt"):
        await Inline("SELECT %(x)s", writes=True).rows(pool, x=object())


async def test_a_server_that_is_not_there_and_an_address_that_is_none(postgres_server: EmbeddedPostgres) -> None:
    with pytest.raises(UnavailableError, match="refused"):
        await open_pool("postgresql://headrace@127.0.0.1:1/nowhere", ONE)
    with pytest.raises(UnavailableError, match="does not exist"):
        await open_pool(postgres_server.tcp_url("nowhere"), ONE)
    with pytest.raises(InvalidError, match=r"metastore\.url: parameter number 1"):
        await open_pool("postgresql://h/x?unknown=1", ONE)


async def test_a_database_without_schema_or_with_an_older_one_asks_for_migration(
    postgres_server: EmbeddedPostgres, metastore_url: str, raw: Session
) -> None:
    with pytest.raises(InvalidError, match="headrace migrate"):
        await PostgresMetastore.open(postgres_server.url("template1"), ONE)
    await raw.execute("DELETE FROM schema_migrations WHERE name = '0001_initial'")
    with pytest.raises(InvalidError, match="missing=0001_initial"):
        await PostgresMetastore.open(metastore_url, ONE)


def test_errors_of_ours_pass_unchanged() -> None:
    with pytest.raises(InvalidError, match=r"^ours$"), translated("x", writes=True):
        raise InvalidError("ours")
    with pytest.raises(OutcomeUnknownError), translated("x", writes=True):
        raise psycopg.OperationalError("server closed the connection unexpectedly")


class _Said(NamedTuple):
    """What the server or a pooler sent."""

    severity_nonlocalized: str
    message_detail: str | None = None


@pytest.mark.parametrize(
    ("kind", "severity", "expected"),
    [
        (psycopg.errors.ConnectionFailure, "ERROR", OutcomeUnknownError),
        (psycopg.errors.ProtocolViolation, "ERROR", OutcomeUnknownError),
        (psycopg.errors.ProtocolViolation, "FATAL", OutcomeUnknownError),
        (psycopg.errors.AdminShutdown, "FATAL", OutcomeUnknownError),
        (psycopg.errors.QueryCanceled, "ERROR", UnavailableError),
        (psycopg.errors.SerializationFailure, "ERROR", UnavailableError),
    ],
)
def test_what_a_pooler_says_of_its_server_leaves_a_write_in_doubt(
    kind: type[psycopg.Error], severity: str, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PgBouncer that lost the server answers class 08, also after the server has committed."""
    monkeypatch.setattr(psycopg.Error, "diag", property(lambda error: _Said(severity)))
    for writes in (True, False):
        with pytest.raises(expected if writes else UnavailableError), translated("x", writes=writes):
            raise kind("server conn crashed?")


async def test_a_transaction_that_was_left_open_ends_by_itself(
    metastore: PostgresMetastore, metastore_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_IN_TRANSACTION_TIMEOUT_MS", 100)
    careless = await open_pool(metastore_url, ONE)
    async with careless.connection() as connection:
        await connection.execute("BEGIN; SELECT lock_metadata_head()", prepare=False)  # at once: its time runs
        assert await metastore.topics.create_topics(
            await metastore.cluster.metadata_head(), [new_topic("others go on")]
        )
        with pytest.raises(psycopg.Error):
            await connection.execute("COMMIT")
    await careless.close()


STUBBORN_WRITER = """
import asyncio, sys, uuid
from headrace.config.settings import Settings
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.api.topics import NewTopic
async def main():
    store = await PostgresMetastore.open(sys.argv[1], Settings(metastore_pool_size=1))
    while True:
        head = await store.cluster.metadata_head()
        await store.topics.create_topics(head, [NewTopic(f"theirs-{head}", uuid.uuid4(), 3, {})])
        print(head, flush=True)
asyncio.run(main())
"""


async def test_a_process_that_is_stopped_anywhere_in_a_call_delays_no_other(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STUBBORN_WRITER, metastore_url, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert writer.stdout is not None
    try:
        for pause_ms in range(12):
            await writer.stdout.readline()
            await asyncio.sleep(pause_ms / 4000)  # stop it at another place each time
            os.kill(writer.pid, signal.SIGSTOP)
            await _create_despite(metastore, f"ours-{pause_ms}")
            os.kill(writer.pid, signal.SIGCONT)
    finally:
        writer.kill()
        await writer.wait()
    assert len([name for name in (await load_image(metastore.cluster)).topics_by_name if name.startswith("ours")]) == 12


async def _create_despite(store: PostgresMetastore, name: str) -> None:
    """All that the stopped process had sent is finished by Postgres: at most one head behind."""
    attempts: list[Any] = []
    while not attempts or not attempts[-1]:
        attempts.append(await store.topics.create_topics(await store.cluster.metadata_head(), [new_topic(name)]))
    assert len(attempts) <= 2


async def test_a_server_that_only_reads_is_refused(metastore_url: str, raw: Session) -> None:
    """As a hot standby is, that several hosts in the address or a moved name lead to."""
    name = (await (await raw.execute("SELECT current_database()")).fetchone() or ("",))[0]
    await raw.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    with pytest.raises(UnavailableError, match="read-only"):
        await open_pool(metastore_url, ONE)


async def test_a_connection_that_turned_read_only_is_replaced(pool: Pool) -> None:
    """As one to a primary that became a standby is: nothing was written, and the next call finds a primary."""
    pid = Inline("SELECT pg_backend_pid()", writes=False)
    (before,) = await pid.row(pool)
    await Inline("SELECT set_config('default_transaction_read_only', 'on', false)", writes=False).rows(pool)
    with pytest.raises(UnavailableError, match="25006"):
        await Inline("SELECT lock_metadata_head()", writes=True).rows(pool)
    (after,) = await pid.row(pool)
    assert after != before
    await Inline("SELECT lock_metadata_head()", writes=True).rows(pool)


async def test_the_parts_of_an_address_may_come_from_the_environment(
    metastore_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the chart gives them, from a Secret: nothing in them is percent-encoded."""
    parts = parsed(metastore_url)
    for name, part in (("PGHOST", "host"), ("PGPORT", "port"), ("PGUSER", "user"), ("PGDATABASE", "dbname")):
        monkeypatch.setenv(name, str(parts.get(part, "5432" if part == "port" else "")))
    monkeypatch.setenv("PGPASSWORD", str(parts.get("password") or "a/b@c%d e"))
    pool = await open_pool("postgresql://?target_session_attrs=read-write", ONE)
    async with pool.connection() as connection:
        row = await (await connection.execute("SELECT current_database()")).fetchone()
    assert row == (parts["dbname"],)
    await pool.close()
    with connected("postgresql://") as connection_of_a_command:
        assert connection_of_a_command.info.dbname == parts["dbname"]
    assert address_of(Settings(metastore_url="postgresql://")).endswith(f"/{parts['dbname']}")
