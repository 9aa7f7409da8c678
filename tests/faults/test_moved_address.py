"""The drill of a moved address judges agents: those that follow calmly, that stay, and that connect without end.

An agent is one connection to its proxy here, and a server is a port that accepts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from tests.torture.moved_address import LOOK_SECONDS, move_address
from tests.torture.proxy import FaultProxy

STEP = LOOK_SECONDS / 10


class Agent:
    """Connected to Postgres by way of its proxy, and again if that connection is reset."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self) -> None:
        """Leave the connection that it has, and make another one."""
        if self._writer is not None:
            self._writer.close()
        before = self.proxy.accepted
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        while self.proxy.accepted == before:  # noqa: ASYNC110 (the proxy connects first)
            await asyncio.sleep(0)

    async def stays(self, new: int) -> None:
        """Go elsewhere only if it must."""
        with suppress(ConnectionError):
            await self._reader.read()
        await self.connect()

    async def storms(self, new: int) -> None:
        """Connect at each look until it has the new server."""
        while not self.proxy.open_to(new):
            await asyncio.sleep(STEP)
            await self.connect()

    async def follows(self, new: int) -> None:
        """Leave once for each change of the address."""
        await self.connect()
        while not self.proxy.open_to(new):
            await asyncio.sleep(STEP)
            if self.proxy.target == new:
                await self.connect()
                await asyncio.sleep(STEP)


async def _swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        await reader.read()
    writer.close()


async def judged(behaviour: Callable[[Agent, int], Coroutine[Any, Any, None]]) -> list[str]:
    servers = [await asyncio.start_server(_swallow, "127.0.0.1", 0) for _ in range(2)]
    old, new = (server.sockets[0].getsockname()[1] for server in servers)
    agents = [Agent(FaultProxy(random.Random(n))) for n in range(3)]
    for agent in agents:
        await agent.proxy.start()
        agent.proxy.target = old
        await agent.connect()
    links = [agent.proxy for agent in agents]
    try:
        async with asyncio.TaskGroup() as group:
            behaving = [group.create_task(behaviour(agent, new)) for agent in agents]
            found = await move_address(
                old, new, links, lambda: [1] * 3, random.Random(1), wrong_seconds=2.0, patience_seconds=2.0
            )
            for task in behaving:
                task.cancel()
    finally:
        for link in links:
            await link.close()
        for server in servers:
            server.close()
    return found


async def test_agents_that_follow_pass() -> None:
    assert await judged(Agent.follows) == []


async def test_agents_that_stay_are_seen() -> None:
    (offence,) = await judged(Agent.stays)
    assert offence.startswith("agents stay with the old primary")


async def test_agents_that_connect_at_each_look_are_seen() -> None:
    found = await judged(Agent.storms)
    assert any(offence.startswith("too many new connections") for offence in found)
