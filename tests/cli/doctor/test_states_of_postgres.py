"""Each probe of Postgres against each state of a server that does not do its work: what readiness and the doctor say.

Fault model: commits that wait for a standby that is gone; a table that another session has locked; connections that
stay open and transfer nothing; a server that accepts TCP connections and never answers; one that refuses a login or new
connections; one that only reads.
Invariant: each probe ends. The watch (probe_commit) raises for what may be this process's trouble alone, and answers
with a refusal for what all processes share. The life of the metastore depends on no write.
"""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import msgspec
import psycopg
import pytest

from headrace.cli.doctor import postgres
from headrace.config.settings import Settings
from headrace.metastore.api.agents import RegisteredAgent
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.verdict import LifeVerdict
from headrace.metastore.postgres import pool, statement
from headrace.metastore.postgres.diagnosis import diagnosis as hosts
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.memory import MemoryStore
from tests.manual_clock import ManualClock
from tests.metastore.lost_standby import STANDBY, LostStandby
from tests.metastore.sessions import join
from tests.torture.proxy import FaultProxy

WORKS = "works"


class Expected(NamedTuple):
    """`watch`: WORKS, "refuses: ..." or "fails: ..." with a part of the text; the same for a heartbeat. `doctor`: check
    -> (level, a part of the line and of what to do)."""

    watch: str
    heartbeat: str
    life: str
    doctor: dict[str, tuple[str, str]]


STATES = {
    "sound": Expected(WORKS, WORKS, WORKS, {"commits": ("ok", "a commit takes")}),
    "commits wait for a standby": Expected(
        f"refuses: synchronous_standby_names='{STANDBY}'",
        "fails: heartbeat_at",
        WORKS,
        {"commits": ("bad", f"synchronous_standby_names='{STANDBY}'"), "standbys": ("bad", "ALTER SYSTEM SET")},
    ),
    "the agents' table is locked": Expected(
        WORKS, "fails: sqlstate=55P03", WORKS, {"locks": ("bad", "agents is locked against all")}
    ),
    "the cluster's table is locked": Expected(
        WORKS, "fails: sqlstate=55P03", "fails: sqlstate=55P03", {"locks": ("bad", "cluster is locked against all")}
    ),
    "connections are half open": Expected(
        "fails: a commit has not ended", "fails: heartbeat_at", "fails: describe_life", {"connect": ("bad", "timeout")}
    ),
    "it accepts and never answers": Expected(
        "fails: a commit has not ended", "fails: heartbeat_at", "fails: describe_life", {"connect": ("bad", "timeout")}
    ),
    "it refuses new connections": Expected(
        WORKS, WORKS, WORKS, {"connect": ("bad", "not currently accepting connections")}
    ),
    "it refuses the password": Expected(WORKS, WORKS, WORKS, {"connect": ("bad", "password authentication failed")}),
    "it only reads in new sessions": Expected(WORKS, WORKS, WORKS, {"connect": ("bad", "set for: database")}),
    "it only reads": Expected(
        "refuses: read-only", "fails: read-only transaction", WORKS, {"connect": ("bad", "read-only")}
    ),
}


class World:
    """A process that was started before, by way of a proxy, and what the doctor is given."""

    def __init__(self, server: EmbeddedPostgres, url: str, proxy: FaultProxy, settings: Settings) -> None:
        self.server, self.url, self.proxy, self.settings = server, url, proxy, settings
        self.database = url.partition("@/")[2].partition("?")[0]
        self.address = server.tcp_url(self.database, proxy.port)
        self.store: PostgresMetastore
        self.agent: RegisteredAgent

    def run(self, sql: str) -> None:
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(sql.encode())

    @asynccontextmanager
    async def in_state(self, name: str) -> AsyncIterator[None]:
        match name:
            case "sound":
                yield
            case "commits wait for a standby":
                with LostStandby(self.url):
                    await self.store.pool.drain()
                    await self.store.readers.drain()
                    yield
            case "the agents' table is locked" | "the cluster's table is locked":
                with psycopg.connect(self.url) as lock:
                    lock.execute("LOCK TABLE " + ("agents" if "agents" in name else "cluster"))
                    yield
            case "connections are half open":
                await self.proxy.window("half_open", 0.0)
                self.proxy.fault = "half_open"
                yield
            case "it accepts and never answers":
                with socket.create_server(("127.0.0.1", 0)) as silent:
                    self.proxy.target = silent.getsockname()[1]
                    self.proxy.reset()
                    yield
            case "it refuses new connections":
                self.run(f"ALTER DATABASE {self.database} ALLOW_CONNECTIONS false")
                yield
                self.run(f"ALTER DATABASE {self.database} ALLOW_CONNECTIONS true")
            case "it refuses the password":
                before, _, host = self.address.rpartition("@")
                self.address = f"{before}x@{host}"
                yield
            case "it only reads in new sessions":
                self.run(f"ALTER DATABASE {self.database} SET default_transaction_read_only = on")
                yield
                self.run(f"ALTER DATABASE {self.database} RESET default_transaction_read_only")
            case "it only reads":
                for each in [await self.store.pool.getconn() for _ in range(self.store.pool.max_size)]:
                    await each.execute("SET default_transaction_read_only = on")
                    await self.store.pool.putconn(each)
                self.run(f"ALTER DATABASE {self.database} SET default_transaction_read_only = on")
                yield
                self.run(f"ALTER DATABASE {self.database} RESET default_transaction_read_only")

    async def watch(self) -> str:
        with _said() as said:
            await self.store.probe_commit()
        refusal = self.store.refusal()
        return said[0] if said else WORKS if refusal is None else f"refuses: {refusal}"

    async def heartbeat(self) -> str:
        with _said() as said:
            node_id, epoch = self.agent
            await self.store.cluster.heartbeat(
                node_id, epoch, metadata_offset=1, want_fence=False, session_timeout_ms=9_000
            )
        return said[0] if said else WORKS

    async def life(self) -> str:
        keeper = LifeKeeper(self.store.life, MemoryStore(ManualClock()), ManualClock(), random.Random(1), begins=False)
        with _said() as said:
            assert await keeper.check() is LifeVerdict.CURRENT
        return said[0] if said else WORKS

    async def doctor(self) -> dict[str, tuple[str, str]]:
        settings = msgspec.structs.replace(self.settings, metastore_url=self.address)
        found = await postgres.examine(settings, SystemClock())
        return {finding.check: (finding.level.value, f"{finding.found} → {finding.to_do}") for finding in found}


@contextmanager
def _said() -> Iterator[list[str]]:
    said: list[str] = []
    try:
        yield said
    except HeadraceError as error:
        said.append(f"fails: {error}")


@pytest.fixture
async def world(
    postgres_server: EmbeddedPostgres, metastore_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(statement, "SILENCE_S", 0.2)
    monkeypatch.setattr(pool, "CONNECT_TIMEOUT_S", 2)
    monkeypatch.setattr(pool, "READ_TIMEOUT_S", 1)
    monkeypatch.setattr(hosts, "HOST_SECONDS", 0.5)
    proxy = FaultProxy(random.Random(0))
    await proxy.start()
    proxy.target = postgres_server.port
    settings = Settings(metastore_pool_size=2, metastore_statement_timeout_ms=2_000, metastore_lock_timeout_ms=500)
    world = World(postgres_server, metastore_url, proxy, settings)
    world.store = await PostgresMetastore.open(world.address, settings)
    world.agent = await join(world.store)
    yield world
    await world.store.close()
    await proxy.close()


@pytest.mark.parametrize("state", STATES)
async def test_what_each_probe_says(world: World, state: str) -> None:
    expected = STATES[state]
    async with world.in_state(state):
        for wanted, look in (
            (expected.watch, world.watch),
            (expected.life, world.life),
            (expected.heartbeat, world.heartbeat),
        ):
            found = await look()
            kind, _, part = wanted.partition(": ")
            assert found.startswith(kind), (look, found)
            assert part in found, (look, found)
        lines = await world.doctor()
    for check, (level, part) in expected.doctor.items():
        assert lines[check][0] == level, lines
        assert part in lines[check][1], lines
