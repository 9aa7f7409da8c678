"""The cluster around the agents of a share schedule: registrations and leases, the metastore, logs, and links.

Fault model: an agent's picture of the others lags; its lease runs out while it is paused; a call to the metastore fails
before it was made, or its answer is lost, or it is made later although its caller got an error; a killed process's
calls still arrive. A turn for another agent is lost before or after it was taken. Ends of logs are known late, never
early. A partition is removed and comes again under its key, as when its topic halves and doubles: it continues at the
offset where it ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.routing import Routes
from headrace.agent.fetch.waiters import Waiter
from headrace.agent.peers.forwarding.links import LOST
from headrace.agent.peers.forwarding.wire import ForwardOutcome
from headrace.metastore.api.agents import SHARE_VERSION, FeatureRange
from headrace.metastore.api.read import ReadableEnds
from headrace.metastore.keys import partition_key
from headrace.metastore.log.effective_configs import GROUP_RESOURCE
from headrace.metastore.log.image import AgentImage, MetadataImage, TopicImage
from headrace.protocol.request import ClientConnection, Request
from headrace.storage.errors import HeadraceError, OutcomeUnknownError, UnavailableError
from tests.agent.groups.fake_group_api import FakeGroupApi
from tests.nouns import NOUNS

if TYPE_CHECKING:
    from tests.simulation.shares.agents import Process
    from tests.simulation.shares.world import ShareWorld

LATENCY = (0.0005, 0.01)
LEASE_SECONDS = 0.6
GROUP, TOPIC = "g", "t"
NUMBER = 7
TOPIC_ID = uuid.UUID(int=77)
KEYS = (partition_key(NUMBER, 0), partition_key(NUMBER, 1))
READ_COMMITTED = MappingProxyType({(GROUP_RESOURCE, GROUP): {"share.isolation.level": "read_committed"}})


class Registry:
    """Agents by node id: epoch of the registration, and when each was heard of last."""

    def __init__(self, world: ShareWorld) -> None:
        self._world = world
        self._epochs: dict[int, int] = {}
        self._heard: dict[int, float] = {}
        self._next = 100
        topic = TopicImage(TOPIC_ID, NUMBER, TOPIC, 2, 2, (0, 0))
        self._whole, self._half = _image_of(topic), _image_of(replace(topic, removed=frozenset({1})))

    def is_live(self, node_id: int, broker_epoch: int) -> bool:
        """Return whether the registration counts, by the clock of the metastore: longer than the agent believes."""
        heard = self._heard.get(node_id)
        is_registered = self._epochs.get(node_id) == broker_epoch and heard is not None
        return is_registered and self._world.loop.time() < heard + 1.2 * LEASE_SECONDS  # type: ignore[operator]

    def renew(self, node_id: int, broker_epoch: int) -> int:
        """The epoch of the registration: the same one if it still counts."""
        if not self.is_live(node_id, broker_epoch):
            self._next += 1
            self._epochs[node_id] = self._next
        self._heard[node_id] = self._world.loop.time()
        return self._epochs[node_id]

    def image(self) -> MetadataImage:
        """The newest one."""
        agents = {
            node_id: AgentImage(node_id, epoch, uuid.UUID(int=epoch), "agent", node_id, None, False)
            for node_id, epoch in self._epochs.items()
            if self.is_live(node_id, epoch)
        }
        base = self._half if self._world.removed else self._whole
        if self._world.transactions is not None:
            base = replace(base, configs=READ_COMMITTED)
        return replace(base, agents=MappingProxyType(agents), offset=self._next)


def _image_of(topic: TopicImage) -> MetadataImage:
    return MetadataImage(
        topics_by_name=MappingProxyType({TOPIC: topic}),
        topics_by_id=MappingProxyType({TOPIC_ID: topic}),
        topics_by_number=MappingProxyType({NUMBER: topic}),
        features=MappingProxyType({SHARE_VERSION: FeatureRange(0, 1)}),
    )


class View:
    """Implements agent.cluster.view.ClusterView for one process."""

    cluster_id, commit_shards = "simulated", 1

    def __init__(self, world: ShareWorld, process: Process, node_id: int) -> None:
        self._world, self._process = world, process
        self.node_id, self.broker_epoch = node_id, -1
        self.image = MetadataImage()
        self._lease_until = 0.0

    @property
    def routes(self) -> Routes:
        return Routes(self.image, self.commit_shards)

    async def catch_up(self) -> MetadataImage:
        await self._world.pause(LATENCY)
        self.image = self._world.registry.image()
        return self.image

    async def keep(self) -> None:
        """Renew the lease, and see the others a little late."""
        while True:
            sent = self._process.clock.monotonic()
            await self._world.pause(LATENCY)
            if self._world.rng.random() < self._world.trouble(0.05):
                await asyncio.sleep(self._world.rng.uniform(0.1, 0.9))  # the heartbeat is slow
                continue
            epoch = self._world.registry.renew(self.node_id, self.broker_epoch)
            await self._world.pause(LATENCY)
            self.broker_epoch, self._lease_until = epoch, sent + LEASE_SECONDS
            if self._world.rng.random() < 0.7 or not self._world.is_troubled:
                self.image = self._world.registry.image()
            await asyncio.sleep(0.08)

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        return None

    def coordinator(self, group_id: str) -> AgentImage | None:
        live = [agent for agent in self.image.agents.values() if agent.live]
        best = max(live, key=lambda each: hashlib.md5(f"{group_id}{each.node_id}".encode()).digest(), default=None)
        if best is not None and best.node_id == self.node_id and self._process.clock.monotonic() >= self._lease_until:
            return None
        return best


class StoreLine:
    """The fake metastore behind a network, for one process: every operation of FakeGroupApi."""

    def __init__(self, world: ShareWorld) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self
        operation = getattr(self._world.store, name)

        async def call(*args: Any, **more: Any) -> Any:
            world, rng = self._world, self._world.rng
            await world.pause(LATENCY)
            if rng.random() < world.trouble(0.06):
                raise UnavailableError("simulated: not reached")
            is_late = rng.random() < world.trouble(0.06)
            late = rng.uniform(0.05, 0.6) if is_late else 0.0
            pending = world.spawn(_later(late, lambda: operation(*args, **more)))
            if late and rng.random() < 0.7:
                await asyncio.sleep(0.03)
                raise OutcomeUnknownError("simulated: no answer")
            outcome = await asyncio.shield(pending)
            if isinstance(outcome, HeadraceError):
                raise outcome
            await world.pause(LATENCY)
            if rng.random() < world.trouble(0.05):
                raise OutcomeUnknownError("simulated: the answer is lost")
            return outcome

        return call


async def _later(seconds: float, operation: Callable[[], Awaitable[Any]]) -> Any:
    """Also if its caller is gone."""
    if seconds:
        await asyncio.sleep(seconds)
    try:
        return await operation()
    except HeadraceError as error:
        return error


@dataclass
class Log:
    """One partition: the ends it had, with times."""

    start: int = 0
    ends: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])

    @property
    def end(self) -> int:
        return self.ends[-1][1]

    def end_at(self, time: float) -> int:
        """The end as it was then."""
        return next(end for at, end in reversed(self.ends) if at <= time or not at)


class Logs:
    """Implements agent.groups.share.logs.ShareLogs for one process."""

    is_draining = False

    def __init__(self, world: ShareWorld) -> None:
        self._world = world
        self.waiters: dict[Waiter, None] = {}

    async def ends(self, offsets: Mapping[int, int], *, committed: bool) -> dict[int, ReadableEnds | ErrorCode]:
        world = self._world
        if world.rng.random() < 0.3:
            await world.pause(LATENCY)
        if world.rng.random() < world.trouble(0.03):
            return dict.fromkeys(offsets, ErrorCode.kafka_storage_error)
        seen = world.loop.time() - (world.rng.uniform(0, 0.3) if world.is_troubled else 0.0)
        return {
            key: ErrorCode.unknown_topic_or_partition
            if key in world.removed
            else ReadableEnds(
                world.logs[key].start, world.readable_end(key, seen) if committed else world.logs[key].end_at(seen)
            )
            for key in offsets
        }

    async def beginnings(self, keys: Collection[int], reset: str) -> dict[int, int]:
        await self._world.pause(LATENCY)
        logs = {key: log for key, log in self._world.logs.items() if key not in self._world.removed}
        return {key: logs[key].start if reset == "earliest" else logs[key].end for key in keys if key in logs}

    async def high_watermarks(self, keys: Collection[int]) -> dict[int, int]:
        await self._world.pause(LATENCY)
        return {key: self._world.logs[key].end for key in keys if key not in self._world.removed}

    @contextmanager
    def watch(self, keys: Collection[int]) -> Iterator[Waiter]:
        waiter = Waiter()
        self.waiters[waiter] = None
        try:
            yield waiter
        finally:
            del self.waiters[waiter]


class SimulatedLinks:
    """Takes the place of agent.peers.forwarding.links.Links of one process; those have other tests."""

    def __init__(self, world: ShareWorld, process: Process) -> None:
        self._world, self._process = world, process
        self._there: dict[tuple[ClientConnection, Process], ClientConnection] = {}

    def forward(self, agent: AgentImage, request: Request) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._world.loop.create_future()
        self._world.spawn(self._carry(agent.node_id, request, answer))
        return answer

    async def _carry(self, node_id: int, request: Request, answer: asyncio.Future[Any]) -> None:
        world, rng, client = self._world, self._world.rng, request.connection
        await world.pause(LATENCY)
        target = world.agents[node_id - 1].process
        if target is None or client.closed or rng.random() < world.trouble(0.04):
            _settle(answer, LOST)
            return
        there = self._there.get((client, target))
        if there is None:
            there = self._there[client, target] = ClientConnection(client.connection_id, client.peer, is_forwarded=True)
            client.call_when_closed(lambda: world.close_late(target, there))
            target.served.append(there)
        inner = Request(there, request.api_key, request.api_version, 0, None, request.body, 0.0)
        done = world.begin(target, lambda: target.requests.share_owner.handle(inner))
        await asyncio.wait([done], timeout=3.0)
        await world.pause(LATENCY)
        if not done.done() or done.exception() is not None or rng.random() < world.trouble(0.06):
            _settle(answer, LOST)
            return
        _settle(answer, (ForwardOutcome.ANSWERED, memoryview(b"".join(done.result().buffers))))


def _settle(answer: asyncio.Future[Any], outcome: Any) -> None:
    if not answer.done():
        answer.set_result(outcome)


def new_store(registry: Registry) -> FakeGroupApi:
    """The metastore of a schedule."""
    return FakeGroupApi(registry.is_live)
