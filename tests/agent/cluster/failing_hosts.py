"""Agents on hosts that stop, lose their network, or crash; and consumers that continue through it.

Fault model: a killed host never runs again, and the metastore hears nothing more of it; a paused one
(SIGSTOP, a long collection, a machine that sleeps) stops at any point of its work and continues
later with what it believed; a host that is cut off runs, but its calls of the metastore fail. A call that
was under way at that moment was carried out, and its answer is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.agent.groups.fake_group_api import FakeGroupApi
from tests.agent.groups.groups_world import Coordinating
from tests.manual_clock import ManualClock
from tests.nouns import NOUNS, nouns

SESSION_TIMEOUT_MS = 18_000
REDIRECTS = {
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.request_timed_out,
}
"""What a client takes as: look for the coordinator, or ask again."""


class Host:
    """One machine: its clock stops while it is paused, but time continues."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.running = asyncio.Event()
        self.running.set()
        self.cut_off = False
        self.deaf = False
        """It renews its lease, and hears nothing new."""

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        await self.running.wait()

    def wire(self, api: object) -> Any:
        """The metastore as this host reaches it."""
        return _Wire(self, api)


class _Wire:
    def __init__(self, host: Host, api: object) -> None:
        self._host = host
        self._api = api

    def __getattr__(self, operation: str) -> Any:
        if operation in NOUNS:
            return self

        async def call(*arguments: Any, **named: Any) -> Any:
            await self._host.running.wait()
            if self._host.cut_off or (self._host.deaf and operation == "read_metadata"):
                raise UnavailableError("truncated batch")
            answer = await getattr(self._api, operation)(*arguments, **named)
            await self._host.running.wait()
            if self._host.cut_off:
                raise OutcomeUnknownError("the answer was lost")
            return answer

        return call


class Consumer:
    """A member of group g that behaves as client libraries do; it commits growing offsets of its partition."""

    def __init__(self, world: FailoverWorld, partition: int) -> None:
        self._world = world
        self._partition = partition
        self.member_id = ""
        self.generation = -1
        self.assignment: bytes | None = None
        self.joins = 0
        self.position = 0
        self.acknowledged = 0

    async def run(self) -> None:
        """Run until cancelled: a heartbeat and a commit every second, a new join when requested."""
        while True:
            if self.assignment is None:
                await self._join()
            await self._world.clock.sleep(1)
            if self.assignment is not None:
                await self._live()

    async def _join(self) -> None:
        self.joins += 1
        joined = await self._ask(lambda agent: agent.join("g", self.member_id, version=5))
        if joined.error_code == ErrorCode.unknown_member_id:
            self.member_id = ""
        elif joined.error_code == ErrorCode.member_id_required:
            self.member_id = joined.member_id
        elif joined.error_code == 0:
            self.member_id, self.generation = joined.member_id, joined.generation_id
            shares = {m.member_id: f"{m.member_id} in {self.generation}".encode() for m in joined.members}
            synced = await self._ask(lambda agent: agent.sync("g", self.member_id, self.generation, shares))
            if synced.error_code == 0:
                self.assignment = synced.assignment

    async def _live(self) -> None:
        code = await self._ask(lambda agent: agent.heartbeat("g", self.member_id, self.generation))
        if code == 0:
            self.position += 1
            position = self.position
            code = await self._ask(lambda agent: self._commit(agent, position))
            if code == 0:
                self.acknowledged = position
        if code != 0 and code not in REDIRECTS:
            self.assignment = None
            self.member_id = "" if code == ErrorCode.unknown_member_id else self.member_id

    async def _commit(self, agent: Coordinating, position: int) -> int:
        answer = await agent.commit(
            "g", {"orders": {self._partition: position}}, member_id=self.member_id, generation=self.generation
        )
        return int(answer["orders"][self._partition])

    async def _ask(self, request: Callable[[Coordinating], Awaitable[Any]]) -> Any:
        """Ask the coordinator; after a redirect, or without an answer, it tries again."""
        while True:
            for agent in self._world.agents:
                answer = await self._world.answer(agent, request(agent))
                code = answer if isinstance(answer, int) else getattr(answer, "error_code", None)
                if code is not None and code not in REDIRECTS:
                    return answer
            await self._world.clock.sleep(0.2)


class FailoverWorld:
    """Two agents on separate hosts, and a controller that fences silent agents."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.cluster_api = FakeClusterApi(clock)
        self.groups = FakeGroupApi(self._is_live)
        self.hosts = [Host(clock), Host(clock)]
        self.agents = [self._an_agent(host, node_id) for node_id, host in enumerate(self.hosts, 1)]
        self.killed: set[int] = set()

    def _an_agent(self, host: Host, node_id: int) -> Coordinating:
        api = host.wire(self.cluster_api)
        own: dict[str, Any] = {"session_ms": SESSION_TIMEOUT_MS, "port": 9000 + node_id, "clock": host}
        cluster = an_agent(api, node_id, seed=node_id, **own)
        return Coordinating(cluster, nouns(host.wire(self.groups)), host, node_id)

    def _is_live(self, node_id: int, broker_epoch: int) -> bool:
        agent = self.cluster_api.agents.get(node_id)
        return agent is not None and agent.epoch == broker_epoch and not agent.fenced

    async def start(self) -> None:
        self.cluster_api.add_topic("orders", 4)
        for agent in self.agents:
            await self.clock.run(agent.cluster.start())
        for agent in self.agents:
            await agent.cluster.catch_up()

    def home_index(self) -> int:
        """Return where group g is coordinated."""
        found = self.agents[0].cluster.coordinator("g")
        assert found is not None
        return found.node_id - 1

    async def answer(self, agent: Coordinating, request: Awaitable[Any]) -> Any:
        """Return None when the agent does not answer within what a client waits (it is paused, or dead)."""
        index = self.agents.index(agent)
        work = asyncio.ensure_future(request)
        if index in self.killed or not self.hosts[index].running.is_set():
            work.cancel()  # no agent reads the request
            await self.clock.sleep(0.1)
            return None
        patience = asyncio.ensure_future(self.clock.sleep(10))
        stopped = asyncio.ensure_future(self._stopped(index))
        await asyncio.wait((work, patience, stopped), return_when=asyncio.FIRST_COMPLETED)
        patience.cancel()
        stopped.cancel()
        if work.done():
            return work.result()
        work.cancel()
        return None

    async def _stopped(self, index: int) -> None:
        while self.hosts[index].running.is_set() and index not in self.killed:
            await self.clock.sleep(0.1)

    def kill(self, index: int) -> None:
        self.killed.add(index)
        self.pause(index)

    def pause(self, index: int) -> None:
        self.hosts[index].running.clear()

    def resume(self, index: int) -> None:
        self.hosts[index].running.set()

    def cut_off(self, index: int) -> None:
        self.hosts[index].cut_off = True

    def mend(self, index: int) -> None:
        self.hosts[index].cut_off = False

    async def pass_time(self, seconds: float, check: Callable[[], Awaitable[None]]) -> None:
        """Pass the time in steps: the controller fences, the feed tells who can hear it, `check` looks."""
        for _ in range(round(seconds / 0.5)):
            await self.clock.advance(0.5)
            await self.cluster_api.fence_silent_agents(0, session_timeout_ms=SESSION_TIMEOUT_MS)
            for host, agent in zip(self.hosts, self.agents, strict=True):
                if host.running.is_set() and not (host.cut_off or host.deaf):
                    agent.cluster.follower.poke(len(self.cluster_api.log))
            await self.clock.settle()
            await check()
