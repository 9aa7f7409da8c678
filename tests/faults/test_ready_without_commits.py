"""Two agents, and a Postgres that answers reads while no commit ends: a lost synchronous standby, a locked table.

Invariant: no agent is unready at any time, also after the leases ran out, and both go on when commits end again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from tests.agent_process import AgentUnderTest
from tests.kafka_clients import KafkaClients
from tests.metastore.lost_standby import LostStandby
from tests.torture.proxy import FaultProxy
from tests.waiting import until_so

SETTINGS = {
    "broker.session.timeout.ms": 9_000,
    "broker.heartbeat.interval.ms": 2_000,
    "process.roles": "broker,controller",
}
LEASE_LOST = "its lease ran out, in an outage of the metastore that all agents share"
REASONS = {"a standby is lost": "commits wait for a synchronous standby", "a table is locked": "sqlstate=55P03"}


@pytest.fixture
async def proxy(postgres_server: EmbeddedPostgres) -> AsyncIterator[FaultProxy]:
    """Run the agents' way to Postgres."""
    proxy = FaultProxy(random.Random(1))
    await proxy.start()
    proxy.target = postgres_server.port
    yield proxy
    await proxy.close()


@pytest.fixture
async def agents(
    agent_settings: dict[str, object], postgres_server: EmbeddedPostgres, proxy: FaultProxy
) -> AsyncIterator[list[AgentUnderTest]]:
    database = urlsplit(str(agent_settings["metastore.url"])).path.lstrip("/")
    url = postgres_server.tcp_url(database, port=proxy.port)
    both = [AgentUnderTest({**agent_settings, **SETTINGS, "metastore.url": url}) for _ in range(2)]
    await asyncio.gather(*(asyncio.to_thread(agent.__enter__) for agent in both))
    yield both
    await asyncio.gather(*(asyncio.to_thread(agent.__exit__, None, None, None) for agent in both))


@contextmanager
def _no_commits(state: str, url: str, proxy: FaultProxy) -> Iterator[None]:
    if state == "a standby is lost":
        with LostStandby(url):
            proxy.reset()  # new sessions wait
            yield
    else:
        with psycopg.connect(url) as lock:
            lock.execute("LOCK TABLE agents")
            yield


def _are_ready(answers: list[tuple[int, str]]) -> None:
    """Only a busy machine is a reason to be unready."""
    assert all(code == 200 or "event loop: blocked" in text for code, text in answers), answers


def _produce(address: str) -> None:
    KafkaClients(address, {"enable.idempotence": True}).produce("orders", [b"1"])


@pytest.mark.slow  # it waits for leases of 9 s
@pytest.mark.parametrize("state", REASONS)
async def test_no_agent_is_unready_while_no_commit_ends(
    agents: list[AgentUnderTest], proxy: FaultProxy, agent_settings: dict[str, object], state: str
) -> None:
    await asyncio.to_thread(KafkaClients(agents[0].kafka).create, "orders")
    with _no_commits(state, str(agent_settings["metastore.url"]), proxy):

        async def leases_ran_out() -> bool:
            answers = [await asyncio.to_thread(agent.readyz) for agent in agents]
            _are_ready(answers)
            return all(LEASE_LOST in text and REASONS[state] in text for _, text in answers)

        await until_so(leases_ran_out, "both leases ran out")

    async def is_over() -> bool:
        answers = [await asyncio.to_thread(agent.readyz) for agent in agents]
        _are_ready(answers)
        return all("details" not in text for _, text in answers)

    await until_so(is_over, "both agents renewed their leases")
    await asyncio.to_thread(_produce, agents[0].kafka)
