"""The doctor on several servers of one address: a primary and its standby in each order, one that is silent, two that
take writes, a standby that is behind; and a server without a free connection.

Fault model: real servers, and real replication between them. A host that is silent accepts and never answers.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from headrace.cli.doctor import postgres
from headrace.cli.doctor import servers as hosts
from headrace.config.settings import Settings
from headrace.metastore.postgres import pool
from headrace.metastore.postgres.diagnosis import diagnosis as asked
from headrace.metastore.postgres.embedded import USER, EmbeddedPostgres
from headrace.storage.clock import SystemClock
from load.postgres_servers import DATABASE, Servers, ask, copy_data, run
from tests.cli.doctor.world import Line, lines

DOCUMENTED_ROLE = "agents"


@pytest.fixture(scope="module")
def servers(prepared_primary: Path | None) -> Iterator[Servers]:
    """A primary and its synchronous standby; both listen on 127.0.0.1, too."""
    with Servers(prepared=prepared_primary, tcp=True) as servers:
        servers.add_standby("standby")
        servers.replicate_synchronously()
        run(servers.url("primary"), f"CREATE ROLE {DOCUMENTED_ROLE} LOGIN")
        run(
            servers.url("primary"), f"ALTER ROLE {DOCUMENTED_ROLE} SET synchronous_commit = on"
        )  # without fsync, it is off
        script = Path(__file__).resolve().parents[3] / "deploy" / "postgres" / "agent-role.sql"
        run(servers.url("primary"), script.read_text())
        run(servers.url("primary"), f"GRANT headrace_agent TO {DOCUMENTED_ROLE}")
        servers.wait_until_streamed("standby")
        yield servers


async def examined(url: str) -> dict[str, Line]:
    return lines(await postgres.examine(Settings(metastore_url=url), SystemClock()))


@pytest.mark.parametrize("order", [("primary", "standby"), ("standby", "primary")])
async def test_a_primary_and_its_standby_in_each_order(servers: Servers, order: tuple[str, str]) -> None:
    found = await examined(servers.url(*order))
    level, told, _ = found["hosts"]
    assert level == "ok"
    first, second = told.split("; ")
    assert ("takes writes" in first, "a standby" in second) == (order[0] == "primary",) * 2
    assert found["replica lag"][:2] == ("ok", found["replica lag"][1])
    assert found["standby lag"][0] == found["standbys"][0] == "ok"
    assert "1 of them synchronous" in found["standbys"][1]


async def test_a_standby_alone(servers: Servers) -> None:
    found = await examined(servers.url("standby"))
    level, told, to_do = found["connect"]
    assert (level, "a standby, which takes no writes" in told) == ("bad", True)
    assert "promote the standby" in str(to_do)


async def test_a_working_synchronous_standby_that_the_documented_role_does_not_see(servers: Servers) -> None:
    url = servers.url("primary").replace(f"//{USER}@", f"//{DOCUMENTED_ROLE}@")
    assert ask(url, "SELECT sync_state FROM pg_stat_replication") == (None,)
    found = await examined(url)
    level, told, _ = found["standbys"]
    assert (level, "only a role with pg_monitor sees which is synchronous" in told) == ("ok", True)
    level, told, to_do = found["standby lag"]
    assert (level, told.startswith("not known: only a role with pg_monitor")) == ("unknown", True)
    assert "GRANT pg_monitor" in str(to_do)
    assert found["rights"][0] == found["commits"][0] == "ok"


async def test_a_primary_that_does_not_answer_before_its_standby(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq reports the last host only: the standby's refusal, and not the primary's silence."""
    monkeypatch.setattr(pool, "CONNECT_TIMEOUT_S", 2)  # psycopg's least
    monkeypatch.setattr(asked, "HOST_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = servers.tcp_url("standby", port)
        before, _, after = url.rpartition(f"127.0.0.1:{port}")
        level, told, to_do = (await examined(f"{before}127.0.0.1:{port},127.0.0.1:{servers.port('standby')}{after}"))[
            "connect"
        ]
    assert level == "bad"
    silence, standby = told.split("; ")
    assert f"127.0.0.1:{port}/{DATABASE}: no answer in" in silence
    assert f"127.0.0.1:{servers.port('standby')}/{DATABASE}: a standby" in standby
    assert "network" in str(to_do)


async def test_a_standby_that_is_behind(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "LAG_WARN_BYTES", 1024**2)
    run(servers.url("standby"), "SELECT pg_wal_replay_pause()")
    try:
        run(servers.url("primary"), "SELECT pg_logical_emit_message(false, 'test', repeat('x', 3000000))")
        found = await examined(servers.url("primary", "standby"))
    finally:
        run(servers.url("standby"), "SELECT pg_wal_replay_resume()")
    level, told, to_do = found["replica lag"]
    assert (level, "has not replayed" in told, "replay paused" in str(to_do)) == ("warn", True, True)
    level, told, to_do = found["standby lag"]
    assert (level, told.startswith("standby has not flushed 0.0 MiB")) == ("warn", True)
    assert "replay paused" in str(to_do)


async def test_two_servers_that_take_writes(servers: Servers) -> None:
    """The standby was promoted while the primary ran on. It is the last test: nothing follows any more."""
    run(servers.url("primary"), "ALTER SYSTEM SET synchronous_standby_names = ''")
    run(servers.url("primary"), "SELECT pg_reload_conf()")
    servers.promote("standby")
    level, told, to_do = (await examined(servers.url("standby", "primary")))["hosts"]
    assert (level, told.startswith("2 servers take writes: 1. ")) == ("bad", True)
    assert "stop the one that is not the metastore" in str(to_do)


@pytest.fixture
def full_server(prepared_primary: Path | None) -> Iterator[str]:
    """The address of a server of which all connections are open."""
    if prepared_primary is None:
        pytest.skip("Postgres cannot reach this process's temporary folder")
    with tempfile.TemporaryDirectory(prefix="headrace-full-") as place, ExitStack() as stack:
        Path(place).chmod(0o711)
        copy_data(prepared_primary, Path(place) / "server")
        server = EmbeddedPostgres(Path(place) / "server", fsync=False, max_connections=6)
        stack.enter_context(server)
        url = server.url(DATABASE)
        for _ in range(6):
            stack.enter_context(psycopg.connect(url))
        yield url


async def test_a_server_without_a_free_connection(full_server: str) -> None:
    level, told, to_do = (await examined(full_server))["connect"]
    assert (level, "too many clients already" in told) == ("bad", True)
    assert str(to_do).startswith("raise max_connections")
