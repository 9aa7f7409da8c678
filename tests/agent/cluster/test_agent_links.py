"""Links to agents: when a process counts as gone, and when nothing is known."""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import AsyncIterator

import pytest

from headrace.agent.cluster.controller.agent_links import CONNECT_SECONDS, RETRY_SECONDS, AgentLinks, open_link
from headrace.metastore.log.image import AgentImage
from headrace.storage.errors import UnavailableError
from tests.manual_clock import ManualClock


def agent(node_id: int, broker_epoch: int = 1, port: int = 0) -> AgentImage:
    return AgentImage(node_id, broker_epoch, uuid.UUID(int=node_id), "127.0.0.1", port or node_id, None, False)


class ScriptedLink:
    """A link that breaks when the test says so."""

    def __init__(self) -> None:
        self.broke = asyncio.Event()
        self.closed = False

    async def broken(self) -> None:
        await self.broke.wait()

    def close(self) -> None:
        self.closed = True


class Network:
    """Fault model: per port an errno that connecting fails with, or silence."""

    def __init__(self) -> None:
        self.errors: dict[int, int] = {}
        self.silent: set[int] = set()
        self.links: dict[int, list[ScriptedLink]] = {}

    async def connect(self, host: str, port: int) -> ScriptedLink:
        if port in self.silent:
            await asyncio.get_running_loop().create_future()
        if port in self.errors:
            raise OSError(self.errors[port], "scripted")
        link = ScriptedLink()
        self.links.setdefault(port, []).append(link)
        return link

    def cut(self, port: int, error: int | None) -> None:
        """Break the port's links; new connections fail so, or get no answer."""
        if error is None:
            self.silent.add(port)
        else:
            self.errors[port] = error
        for link in self.links[port]:
            link.broke.set()


class World:
    """Links on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock, self.network = ManualClock(), Network()
        self.gone: list[tuple[int, float]] = []
        self.failure: UnavailableError | None = None
        self.links = AgentLinks(self._on_gone, self.clock, self.network.connect)
        self._began = self.clock.monotonic()

    async def _on_gone(self, agent: AgentImage) -> None:
        self.gone.append((agent.node_id, self.clock.monotonic() - self._began))
        if self.failure is not None:
            raise self.failure


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.links.close()


@pytest.mark.parametrize("error", [errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH])
async def test_an_agent_with_a_broken_link_that_refuses_another_is_gone_at_once(world: World, error: int) -> None:
    world.links.keep([agent(1), agent(2)])
    await world.clock.advance(60)
    assert world.gone == []
    world.network.cut(1, error)
    await world.clock.advance(0)
    assert world.gone == [(1, 60.0)]
    await world.clock.advance(RETRY_SECONDS)
    assert world.gone == [(1, 60.0), (1, 60.0 + RETRY_SECONDS)], "said again while it is to be kept"


@pytest.mark.parametrize("error", [None, errno.ETIMEDOUT, errno.EMFILE, -2])
async def test_an_agent_that_does_not_answer_is_not_known_to_be_gone(world: World, error: int | None) -> None:
    world.links.keep([agent(1)])
    await world.clock.advance(1)
    world.network.cut(1, error)
    await world.clock.advance(20 * CONNECT_SECONDS)
    assert world.gone == []


async def test_an_agent_that_was_never_reached_is_not_known_to_be_gone(world: World) -> None:
    """Its advertised address may not work from here."""
    world.network.errors[1] = errno.ECONNREFUSED
    world.links.keep([agent(1)])
    await world.clock.advance(30)
    assert world.gone == []


async def test_a_link_that_an_agent_closes_is_opened_again(world: World) -> None:
    """An idle connection, or one above the agent's limit, which it closes at once."""
    world.links.keep([agent(1)])
    await world.clock.advance(600)
    for _ in range(3):
        world.network.links[1][-1].broke.set()
        await world.clock.advance(RETRY_SECONDS)
    assert world.gone == []
    assert len(world.network.links[1]) == 4
    assert [link.closed for link in world.network.links[1]] == [True, True, True, False]


async def test_an_agent_that_is_not_kept_any_more_is_not_reported(world: World) -> None:
    world.links.keep([agent(1), agent(2)])
    await world.clock.advance(1)
    world.links.keep([agent(2)])
    await world.clock.advance(0)
    assert world.network.links[1][0].closed
    world.network.cut(1, errno.ECONNREFUSED)
    await world.clock.advance(10)
    assert world.gone == []


async def test_a_new_registration_is_another_agent(world: World) -> None:
    world.links.keep([agent(1, broker_epoch=1)])
    await world.clock.advance(1)
    world.network.cut(1, errno.ECONNREFUSED)
    world.links.keep([agent(1, broker_epoch=2)])
    await world.clock.advance(10)
    assert world.gone == [], "the link to the new one was never up"


async def test_a_report_that_fails_is_repeated(world: World) -> None:
    world.failure = UnavailableError("metastore away")
    world.links.keep([agent(1)])
    await world.clock.advance(5)
    world.network.cut(1, errno.ECONNREFUSED)
    await world.clock.advance(RETRY_SECONDS)
    assert len(world.gone) == 2


async def test_real_links_break_with_the_listener_and_are_refused() -> None:
    taken: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.set_result(writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    gone = asyncio.Event()

    async def on_gone(agent: AgentImage) -> None:
        gone.set()

    clock = ManualClock()
    links = AgentLinks(on_gone, clock)
    links.keep([agent(1, port=port)])
    accepted = await taken
    server.close()
    accepted.transport.abort()
    await clock.run(gone.wait())
    await links.close()


async def test_a_host_without_a_listener_refuses() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(ConnectionRefusedError):
        await open_link("127.0.0.1", port)
