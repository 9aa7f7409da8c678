"""Check when connections to Postgres are left: the policy, and processes that follow an address to a promoted
server.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from headrace.config.settings import Settings
from headrace.metastore.api.life import Server
from headrace.metastore.life.keeper import FIRST_WAIT_SECONDS, JITTER, MOST_WAIT_SECONDS, LeavePolicy, LifeKeeper
from headrace.metastore.life.numbers import NO_LIFE
from headrace.metastore.life.verdict import LifeVerdict
from headrace.metastore.life.watch import CHECK_SECONDS
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.objects.memory import MemoryStore
from load.postgres_servers import Servers
from tests.manual_clock import ManualClock
from tests.metastore.sessions import session, waiting
from tests.metastore.test_pool import Inline
from tests.torture.proxy import FaultProxy

OLD, NEW = Server(1, 1), Server(1, 2)
CURRENT, SUPERSEDED = LifeVerdict.CURRENT, LifeVerdict.SUPERSEDED
POOL = 2
FEW = Settings(metastore_pool_size=POOL)
PATIENT = Settings(metastore_pool_size=POOL, metastore_statement_timeout_ms=300_000, metastore_lock_timeout_ms=300_000)
HOUR_CHECKS = int(3600 / CHECK_SECONDS)

Look = tuple[LifeVerdict, Server]


def times(looks: Iterator[Look], seed: int = 1) -> list[float]:
    """When a process leaves its connections, in seconds, checking every CHECK_SECONDS."""
    policy = LeavePolicy(random.Random(seed))
    return [n * CHECK_SECONDS for n, look in enumerate(looks) if policy.leaves(*look, n * CHECK_SECONDS)]


def always(look: Look) -> Iterator[Look]:
    return (look for _ in range(HOUR_CHECKS))


def bounded(left: list[float]) -> bool:
    """Return whether the waits are long enough, and become longer."""
    waits = [after - before for before, after in itertools.pairwise(left)]
    later = waits[4:]
    return all(wait >= FIRST_WAIT_SECONDS for wait in waits) and all(wait >= MOST_WAIT_SECONDS for wait in later)


def test_the_metastores_own_server_is_not_left() -> None:
    assert times(always((CURRENT, OLD))) == []


def test_a_process_that_is_away_leaves_at_once_and_then_seldom() -> None:
    left = times(always((SUPERSEDED, OLD)))
    assert left[0] == 0
    assert bounded(left)
    longest = MOST_WAIT_SECONDS * (1 + JITTER) + CHECK_SECONDS
    assert all(after - before <= longest for before, after in itertools.pairwise(left)), "it never gives up"


def test_processes_do_not_leave_at_the_same_times() -> None:
    assert len({tuple(times(always((SUPERSEDED, OLD)), seed)) for seed in range(20)}) > 10


def test_one_that_reaches_the_new_server_has_left_once() -> None:
    looks = [(CURRENT, OLD), (SUPERSEDED, OLD), *[(CURRENT, NEW)] * HOUR_CHECKS]
    assert times(iter(looks)) == [CHECK_SECONDS]


def test_another_server_that_is_current_is_a_change_too() -> None:
    """Connections to the old one may be in the pool: reads there are not refused."""
    assert times(iter([(CURRENT, OLD), *[(CURRENT, NEW)] * HOUR_CHECKS])) == [CHECK_SECONDS]


def test_an_address_that_leads_to_two_servers_in_turn_is_bounded() -> None:
    looks = [(CURRENT, NEW), (SUPERSEDED, OLD)] * (HOUR_CHECKS // 2)
    left = times(iter(looks))
    assert bounded(left)
    assert len(left) > 10


def test_what_is_due_is_not_forgotten_when_the_next_check_has_another_connection() -> None:
    looks = [(SUPERSEDED, OLD), (CURRENT, NEW), (SUPERSEDED, OLD), *[(CURRENT, NEW)] * 20]
    left = times(iter(looks))
    assert len(left) == 2
    assert bounded(left)


def test_after_a_calm_hour_the_waits_begin_again() -> None:
    looks = [*always((SUPERSEDED, OLD)), *always((CURRENT, NEW)), *[(SUPERSEDED, NEW)] * 12]
    left = [time for time in times(iter(looks)) if time >= 2 * HOUR_CHECKS * CHECK_SECONDS]
    assert left[0] == 2 * HOUR_CHECKS * CHECK_SECONDS
    assert len(left) == 2


class Address:
    """Address of Postgres: connections made from now on go to another server, open ones stay."""

    def __init__(self, servers: Servers, proxy: FaultProxy) -> None:
        self.servers, self.proxy = servers, proxy
        self.clock = ManualClock()
        self._bucket = MemoryStore(ManualClock())
        self._opened: list[PostgresMetastore] = []

    def lead_to(self, server: str) -> None:
        self.proxy.target = self.servers.port(server)

    async def process(self, settings: Settings = FEW) -> tuple[PostgresMetastore, LifeKeeper]:
        made = await self.connect(settings)
        return made, LifeKeeper(made.life, self._bucket, self.clock, random.Random(len(self._opened)))

    async def connect(self, settings: Settings = FEW) -> PostgresMetastore:
        made = await PostgresMetastore.open(self.servers.tcp_url("primary", self.proxy.port), settings)
        self._opened.append(made)
        return made

    async def move(self) -> None:
        """Move the address to a standby that is promoted, and where the next life begins. The old primary stays up."""
        await asyncio.to_thread(self.servers.add_standby, "standby")
        await asyncio.to_thread(self.servers.cut, "standby")
        await asyncio.to_thread(self.servers.promote, "standby")
        self.lead_to("standby")
        _, other = await self.process()
        assert await other.check() is CURRENT

    async def close(self) -> None:
        for metastore in self._opened:
            await metastore.close()


@pytest.fixture
async def address(prepared_primary: Path | None) -> AsyncIterator[Address]:
    with Servers(tcp=True, prepared=prepared_primary) as servers:
        proxy = FaultProxy(random.Random(1))
        await proxy.start()
        made = Address(servers, proxy)
        made.lead_to("primary")
        yield made
        await made.close()
        await proxy.close()


async def follows(address: Address) -> None:
    """All connections of a process, also another thread's and the readers', go where the address leads now."""
    agent, keeper = await address.process()
    worker = await address.connect()
    keeper.name_for(worker.life)
    assert await keeper.check() is CURRENT
    await agent.reports.list_jobs(limit=1)
    await worker.reports.list_jobs(limit=1)
    old = address.servers.port("primary")
    before = address.proxy.open_to(old)
    assert before == 2 * POOL + 2, "the readers' pools have a connection each"
    await address.move()
    accepted = address.proxy.accepted
    assert await keeper.check() is SUPERSEDED
    for _ in range(3):  # nothing forces them but the checks
        address.clock.jump(CHECK_SECONDS)
        verdict = await keeper.check()
        await settled(agent)
    assert verdict is CURRENT
    assert agent.life.named_life == worker.life.named_life == 1
    assert await agent.commits.allocate_producer_ids(10)
    assert await worker.commits.allocate_producer_ids(10)
    await settled(worker)
    await holds(lambda: not address.proxy.open_to(old))
    assert address.proxy.accepted - accepted <= before, "each connection was replaced once"


async def holds(condition: Callable[[], bool]) -> None:
    """Wait until it does."""
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110 (other processes and psycopg's tasks decide)
            await asyncio.sleep(0.01)


async def settled(metastore: PostgresMetastore) -> None:
    """Wait until the pools have their connections again."""
    for pool in (metastore.pool, metastore.readers):
        await holds(lambda pool=pool: len(pool._pool) >= pool.get_stats()["pool_size"])  # type: ignore[misc]


async def test_a_connected_process_follows_the_address(address: Address) -> None:
    await follows(address)


async def test_a_process_that_stays_is_caught(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeavePolicy, "leaves", lambda self, verdict, server, now: False)
    with pytest.raises(AssertionError):
        await follows(address)


async def is_bounded(address: Address) -> None:
    """While the address leads to the wrong server, a minute of checks makes few connections."""
    agent, keeper = await address.process()
    assert await keeper.check() is CURRENT
    await address.move()
    address.lead_to("primary")
    accepted = address.proxy.accepted
    for _ in range(int(60 / CHECK_SECONDS)):
        assert await keeper.check() is SUPERSEDED
        await settled(agent)
        address.clock.jump(CHECK_SECONDS)
    made = address.proxy.accepted - accepted
    assert POOL <= made <= POOL * 60 / FIRST_WAIT_SECONDS
    assert agent.life.named_life == NO_LIFE


async def test_new_connections_are_bounded_while_the_address_is_wrong(address: Address) -> None:
    await is_bounded(address)


async def test_a_process_that_leaves_at_each_check_is_caught(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeavePolicy, "leaves", lambda self, verdict, server, now: verdict is not CURRENT)
    with pytest.raises(AssertionError):
        await is_bounded(address)


async def test_a_call_under_way_finishes(address: Address) -> None:
    old = address.servers.port("primary")
    agent, keeper = await address.process(PATIENT)
    assert await keeper.check() is CURRENT
    async with session(address.servers.url("primary")) as holder:
        await holder.execute("SELECT pg_advisory_lock(7)")
        under_way = asyncio.create_task(Inline("SELECT pg_advisory_lock(7), 42", writes=False).row(agent.pool))
        await waiting(holder, 1)
        await address.move()
        assert await keeper.check() is SUPERSEDED
        assert await keeper.check() is CURRENT, "the call takes none of the other connections"
    assert (await under_way)[1] == 42
    await holds(lambda: not address.proxy.open_to(old))  # its connection is closed after it
