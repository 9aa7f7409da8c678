"""200 groups on one link between two agents: one rebalance waits, and no member loses its session.

Clients connect to one agent over sockets; the other agent coordinates all their groups, and gets every request by one
link over a socket. Sessions run on a clock that the test moves; the link and the listeners use the real one.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from headrace.agent.apis.all_apis import COORDINATOR_ROWS
from headrace.agent.apis.api_row import routes_of
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.peers.channel import ENVELOPE_KEY, OPEN_KEY
from headrace.agent.peers.connection import PeerTerms
from headrace.agent.peers.forwarding.forwarding import Forwarding
from headrace.agent.peers.forwarding.links import Answer, ForwardLink, ForwardMetrics, Links
from headrace.agent.peers.forwarding.service import ForwardServer
from headrace.metastore.api.agents import Listener
from headrace.protocol.request import Request, Response
from headrace.storage.clock import SystemClock
from tests.agent.client_calls import a_request, read_reply
from tests.agent.groups.groups_world import GroupsWorld
from tests.agent.listener.listener_client import Client, Listening, frame, limits, listening, until
from tests.manual_clock import ManualClock

SECRET = b"secret"
NOW_MS = 1_700_000_000_000
GROUPS = 200
JOIN, HEARTBEAT, SYNC = 11, 12, 14
VERSIONS = {JOIN: 3, HEARTBEAT: 2, SYNC: 2}
"""The newest with an empty member id at the first join, and without tagged fields."""
SESSION_SECONDS = 10
STEP_SECONDS = 3
STEPS = 12
"""More than three sessions, and less than the 60 seconds for which a rebalance waits."""


class InOrder(ForwardLink):
    """A planted bug: each request is sent after the answer of the one before it."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.held: list[tuple[Request, asyncio.Future[Answer]]] = []
        self._current: asyncio.Future[Answer] | None = None

    def forward(self, request: Request) -> asyncio.Future[Answer]:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.held.append((request, answer))
        self._next()
        return answer

    def _next(self) -> None:
        if self.held and (self._current is None or self._current.done()):
            request, answer = self.held.pop(0)
            self._current = super().forward(request)
            self._current.add_done_callback(lambda done: (answer.set_result(done.result()), self._next()))


class Consumer:
    """One member of one group, on a separate connection."""

    def __init__(self, group: str, client: Client) -> None:
        self.group, self._client = group, client
        self._numbers = itertools.count(1)
        self.member_id, self.generation = "", -1

    async def send(self, message: Any) -> Request:
        """The request as the agent gets it."""
        body = message.encode(version=VERSIONS[message.API_KEY])
        number = next(self._numbers)
        await self._client.send(frame(number, body, message.API_KEY, VERSIONS[message.API_KEY]))
        return a_request(message.API_KEY, VERSIONS[message.API_KEY], body, correlation_id=number)

    async def answer(self, request: Request) -> Any:
        number, rest = await self._client.reply()
        return read_reply(request, Response([number.to_bytes(4, "big"), rest]))

    async def send_join(self) -> Request:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"topics")
        return await self.send(
            JoinGroupRequest(
                group_id=self.group,
                member_id=self.member_id,
                session_timeout_ms=SESSION_SECONDS * 1000,
                rebalance_timeout_ms=60_000,
                protocol_type="consumer",
                protocols=[protocol],
            )
        )

    async def joined(self, request: Request) -> None:
        found = await self.answer(request)
        assert found.error_code == ErrorCode.none
        self.member_id, self.generation = found.member_id, found.generation_id

    async def sync(self) -> None:
        mine = SyncGroupRequest.SyncGroupRequestAssignment(member_id=self.member_id, assignment=self.group.encode())
        message = SyncGroupRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id, assignments=[mine]
        )
        found = await self.answer(await self.send(message))
        assert (found.error_code, found.assignment) == (ErrorCode.none, self.group.encode())

    async def beat(self) -> int:
        message = HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.member_id)
        return int((await self.answer(await self.send(message))).error_code)

    async def close(self) -> None:
        await self._client.close()


class TwoAgents:
    """Clients of `front` use groups of `home`."""

    def __init__(self, clock: ManualClock, link: type[ForwardLink]) -> None:
        self.clock = clock
        self.world = GroupsWorld(clock)
        self._link_class = link
        self.link: ForwardLink | None = None
        self.home: Listening
        self.front: Listening
        self.metrics = ForwardMetrics(CollectorRegistry())
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        await self.world.start()
        home = Dispatcher()
        for api_key in VERSIONS:
            home.register(api_key, self.world.home.handlers[api_key])
        server = ForwardServer(
            PeerTerms(SECRET, lambda: 2, lambda: NOW_MS), home.handle, random.Random(1), self.metrics, lambda _: True
        )
        server.served = frozenset(VERSIONS)
        home.register_unadvertised(OPEN_KEY, server.open)
        home.register_unadvertised(ENVELOPE_KEY, server.serve)
        self.home = await self._stack.enter_async_context(listening(home.handle))
        shared: Any = SimpleNamespace(forwards=lambda listener: True)
        links = Links(self._make_link, None)
        self._stack.push_async_callback(links.close)
        own = self.world.other.handlers
        forwarding = Forwarding(self.world.other.cluster, shared, links, {})
        front, routes = Dispatcher(), routes_of(COORDINATOR_ROWS)
        for api_key in VERSIONS:
            front.register(api_key, forwarding.wrap(routes[api_key], own[api_key]))
        self.front = await self._stack.enter_async_context(listening(front.handle, limits(connections=2 * GROUPS)))

    def _make_link(self, node_id: int, address: Listener) -> ForwardLink:
        assert self.link is None, "one link"
        self.link = self._link_class(
            2,
            Listener("INTERNAL", "127.0.0.1", self.home.port, 0),
            PeerTerms(SECRET, lambda: 1, lambda: NOW_MS),
            SystemClock(),
            random.Random(2),
            self.metrics,
        )
        return self.link

    def names(self) -> list[str]:
        """Groups of `home`."""
        of_home = (f"group-{n}" for n in itertools.count() if self.world.coordinator(f"group-{n}") is self.world.home)
        return list(itertools.islice(of_home, GROUPS))

    async def consumer(self, group: str) -> Consumer:
        return Consumer(group, await self.front.connect())

    async def stop(self) -> None:
        for agent in self.world.agents:
            await agent.requests.close()
        await self._stack.aclose()
        await self.world.stop()


@pytest.fixture
def made(fake_clock: ManualClock) -> Callable[[type[ForwardLink]], TwoAgents]:
    return lambda link: TwoAgents(fake_clock, link)


@pytest.fixture
async def agents(made: Callable[[type[ForwardLink]], TwoAgents], request: Any) -> AsyncIterator[TwoAgents]:
    both = made(getattr(request, "param", ForwardLink))
    await both.start()
    yield both
    await both.stop()


async def _members(agents: TwoAgents) -> list[Consumer]:
    """One of each group, with its assignment."""
    consumers = [await agents.consumer(name) for name in agents.names()]
    for consumer in consumers:
        await consumer.joined(await consumer.send_join())
        await consumer.sync()
    return consumers


@pytest.mark.requirement("X3")
async def test_no_session_of_200_groups_is_lost_while_one_rebalance_waits(agents: TwoAgents) -> None:
    consumers = await _members(agents)
    rebalancing, *others = consumers
    late = await agents.consumer(rebalancing.group)
    waiting = await late.send_join()
    while await rebalancing.beat() == ErrorCode.none:
        pass  # the join has not arrived yet
    for _ in range(STEPS):
        await agents.clock.advance(STEP_SECONDS)
        assert await asyncio.gather(*(each.beat() for each in others)) == [ErrorCode.none] * len(others)
        assert await rebalancing.beat() == ErrorCode.rebalance_in_progress
    await rebalancing.joined(await rebalancing.send_join())
    await late.joined(waiting)
    assert (late.generation, rebalancing.generation) == (2, 2)
    assert {each.generation for each in others} == {1}
    assert len(agents.home.listener._host.connections) == 1, "one link"
    assert agents.metrics.lost._value.get() == 0
    for each in (*consumers, late):
        await each.close()


@pytest.mark.parametrize("agents", [InOrder], indirect=True)
async def test_a_link_that_answers_in_order_loses_the_sessions(agents: TwoAgents) -> None:
    consumers = await _members(agents)
    rebalancing, *others = consumers
    late = await agents.consumer(rebalancing.group)
    link = agents.link
    assert isinstance(link, InOrder)
    waiting = await late.send_join()
    await until(lambda: link._current is not None and not link._current.done())
    beats = [asyncio.ensure_future(each.beat()) for each in others]
    await until(lambda: len(link.held) == len(others))
    await agents.clock.advance(SESSION_SECONDS + 1)
    await late.joined(waiting)  # the first member's session ended, so the rebalance did, too
    assert set(await asyncio.gather(*beats)) == {ErrorCode.unknown_member_id}
    for each in (*consumers, late):
        await each.close()
