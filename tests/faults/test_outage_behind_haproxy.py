"""Two agents behind haproxy, as ADDRESSES.md configures it, while Postgres or the bucket is away for both of them.

Invariant: haproxy takes out no agent in an outage that all agents share, however long it lasts, nor when it ends; it
takes out an agent that is the only one that does not reach Postgres.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import AdminClient

from headrace.config.free_ports import free_ports
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from tests.agent_process import SECONDS_MAX, AgentUnderTest
from tests.kafka_clients import KafkaClients
from tests.tools import find_haproxy
from tests.torture.proxy import FaultProxy
from tests.waiting import until_so

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "ADDRESSES.md"
TOPIC, RECORDS = "orders", 10
SETTINGS = {
    "broker.session.timeout.ms": 9_000,
    "broker.heartbeat.interval.ms": 2_000,
    "process.roles": "broker,controller",
}
LEASE_LOST = "its lease ran out"
CHECKS = 12
"""So many checks after what happened: four times what takes a server out."""
CHECK_MS = 100


@dataclass
class Haproxy:
    """`servers` says what it thinks of each agent: (status, failed checks)."""

    port: int
    stats: Path

    def servers(self) -> dict[str, tuple[str, int]]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.stats))
            connection.sendall(b"show stat\n")
            text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        head, *rows = [line.split(",") for line in text.removeprefix("# ").splitlines() if line]
        found = [dict(zip(head, row, strict=False)) for row in rows]
        return {
            row["svname"]: (row["status"], int(row["chkfail"])) for row in found if row["svname"].startswith("agent")
        }


@dataclass
class World:
    agents: list[AgentUnderTest]
    proxies: list[FaultProxy]
    """Each agent's way to Postgres."""
    haproxy: Haproxy
    postgres: int

    def cut(self, *agents: int) -> None:
        """Postgres does not answer these agents."""
        for number in agents:
            self.proxies[number].target = 0
            self.proxies[number].reset()

    def restore(self) -> None:
        for proxy in self.proxies:
            proxy.target = self.postgres

    async def readyz(self, agent: int) -> tuple[int, str]:
        return await asyncio.to_thread(self.agents[agent].readyz)

    async def stays_up(self) -> None:
        """haproxy checks each agent CHECKS times, and no check fails."""
        until = time.monotonic() + CHECKS * CHECK_MS / 1000
        while time.monotonic() < until:
            assert self.haproxy.servers() == {"agent-1": ("UP", 0), "agent-2": ("UP", 0)}
            await asyncio.sleep(CHECK_MS / 1000)


def _config(stats: Path, port: int, agents: list[AgentUnderTest]) -> str:
    """The configuration of the page, with the addresses of this test and quicker checks."""
    (text,) = re.findall(r"haproxy:\n\n```\n(.+?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[:1]
    text = text.replace("bind :9092", f"bind 127.0.0.1:{port}")
    text = text.replace("defaults\n", "defaults\n    timeout check 60s\n")  # a busy machine is no failure
    for number, agent in enumerate(agents, 1):
        text, count = re.subn(
            rf"server agent-{number} \S+ check port 9644",
            f"server agent-{number} {agent.kafka} check port {urlsplit('//' + agent.http).port} inter {CHECK_MS}ms",
            text,
        )
        assert count == 1
    return f"global\n    stats socket {stats}\n\n{text}"


@asynccontextmanager
async def _haproxy(folder: Path, short: Path, agents: list[AgentUnderTest]) -> AsyncIterator[Haproxy]:
    """Run it. `short`: a folder for the socket; the path of a socket has at most about 90 bytes."""
    (port,), stats = free_ports(1), short / "stats"
    (folder / "haproxy.cfg").write_text(_config(stats, port, agents))
    command = [str(find_haproxy()), "-db", "-f", str(folder / "haproxy.cfg")]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        found = Haproxy(port, stats)

        async def is_up() -> bool:
            assert process.returncode is None
            return stats.exists() and [each[0] for each in found.servers().values()] == ["UP", "UP"]

        await until_so(is_up, "haproxy has both agents")
        yield found
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
async def world(
    agent_settings: dict[str, object], postgres_server: EmbeddedPostgres, tmp_path: Path
) -> AsyncIterator[World]:
    database = urlsplit(str(agent_settings["metastore.url"])).path.lstrip("/")
    server = urlsplit(postgres_server.tcp_url(database))
    assert server.port is not None
    proxies = [FaultProxy(random.Random(number)) for number in range(2)]
    agents = []
    for proxy in proxies:
        await proxy.start()
        proxy.target = server.port
        url = postgres_server.tcp_url(database, port=proxy.port)
        agents.append(AgentUnderTest({**agent_settings, **SETTINGS, "metastore.url": url}))
    await asyncio.gather(*(asyncio.to_thread(agent.__enter__) for agent in agents))
    try:
        with tempfile.TemporaryDirectory(prefix="haproxy-") as short:
            async with _haproxy(tmp_path, Path(short), agents) as haproxy:
                yield World(agents, proxies, haproxy, server.port)
    finally:
        for proxy in proxies:
            proxy.target = server.port
        await asyncio.gather(*(asyncio.to_thread(agent.__exit__, None, None, None) for agent in agents))
        for proxy in proxies:
            await proxy.close()


def _produce(address: str, count: int) -> None:
    KafkaClients(address, {"enable.idempotence": True}).produce(TOPIC, range(count))


@pytest.mark.slow  # it waits for leases of 9 s; with shorter ones they end too far apart on a busy machine
@pytest.mark.needs("haproxy")
async def test_an_outage_of_postgres_that_outlasts_the_leases_takes_out_no_agent(world: World) -> None:
    address = f"127.0.0.1:{world.haproxy.port}"
    await asyncio.to_thread(KafkaClients(address).create, TOPIC)
    await asyncio.to_thread(_produce, address, RECORDS)
    world.cut(0, 1)

    async def leases_ran_out() -> bool:
        answers = [await world.readyz(number) for number in range(2)]
        assert [code for code, _ in answers] == [200, 200], answers
        return all(LEASE_LOST in text for _, text in answers)

    await until_so(leases_ran_out, "both leases ran out")
    await world.stays_up()
    shown = await asyncio.to_thread(
        lambda: AdminClient({"bootstrap.servers": address}).list_topics(timeout=SECONDS_MAX)
    )
    assert TOPIC in shown.topics, "a client finds an agent"
    world.restore()

    async def is_over() -> bool:
        return all([await world.readyz(number) == (200, '{"status":"ready"}') for number in range(2)])

    await until_so(is_over, "both agents renewed their leases")
    await world.stays_up()
    await asyncio.to_thread(_produce, address, 1)


@pytest.mark.needs("haproxy")
async def test_an_agent_that_alone_does_not_reach_postgres_is_taken_out_and_comes_back(world: World) -> None:
    world.cut(0)

    async def is_out() -> bool:
        return {name: status for name, (status, _) in world.haproxy.servers().items()} == {
            "agent-1": "DOWN",
            "agent-2": "UP",
        }

    await until_so(is_out, "haproxy has taken out the agent")
    code, text = await world.readyz(0)
    assert (code, json.loads(text)["status"]) == (503, "not ready")
    world.restore()

    async def is_back() -> bool:
        return all(status == "UP" for status, _ in world.haproxy.servers().values())

    await until_so(is_back, "haproxy has the agent again")
