"""Byte ranges near the high watermark: from their owner among the agents of the zone, else from the store.

Place: between files/read.py and the chunk cache, for ranges that are not in this agent's memory. ChunkOwners assigns
each chunk to the agent that caches it for all of the zone; Peers asks the others: one call each over the agents'
Kafka listener, few connections, a deadline, no queue. The metrics are those of both sides (serving.py).
Invariant: agents with the same image choose the same owner; only active agents of the same zone are chosen, so no
data byte crosses zones (W15). Agents without a zone share one group. A wrong owner only costs one more GET, because
every agent serves every request.
There is one call per owner, for any number of ranges and files; concurrent readers of the same bytes share it. A
call ends within the deadline, regardless of the other agent; ranges that were not delivered in time or not correctly
are a Fallback, never an error and never a wrong byte: the chunk cache reads them from the store, with one GET. A
file that once delivered wrong bytes is not requested from other agents again while that is remembered. The number of
awaited ranges per agent is limited: above it nothing is requested. After failures an agent is skipped for a while,
so a crashed agent rarely costs a reader the deadline.
Metrics are counted per call or per range, never per batch; labels have few values.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import uuid
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter

from headrace.agent.cluster.routing import chunk_role, preferred
from headrace.agent.cluster.view import ClusterView
from headrace.agent.fetch.files.cache import ChunkCache, joined
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.peers.channel import ZONE_CACHE
from headrace.agent.peers.connection import PeerConnection, PeerTerms
from headrace.agent.peers.zone_cache_wire import (
    BUSY,
    MAX_ANSWER_BYTES,
    MAX_RANGES,
    Ask,
    decode_answer,
    encode_ask,
    largest_answer,
)
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.storage.clock import Clock, within
from headrace.storage.counter_labels import from_zero
from headrace.storage.errors import CorruptError, HeadraceError, UnavailableError
from headrace.storage.segment.file_range import FileRange, RangeBytes


class Fallback(enum.StrEnum):
    """Why a range was read from the object store although another agent owns its chunk."""

    DOWN = "down"
    """No connection, or it was closed."""
    SLOW = "slow"
    """No answer within zone.cache.timeout.ms."""
    RESTING = "resting"
    """The agent failed recently and is skipped."""
    BUSY = "busy"
    """It serves too many ranges already, or too many are awaited from it."""
    WRONG = "wrong"
    """Truncated, altered or forged bytes."""
    FAILED = "failed"
    """It could not read the range itself."""


class ZoneCacheMetrics:
    """One set per agent; its HTTP listener shows `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        rpcs = Counter(
            "headrace_zone_cache_rpcs_total",
            "Calls between agents for ranges of segment files",
            ["direction"],
            registry=registry,
        )
        self.rpcs_sent = rpcs.labels("sent")
        self.rpcs_served = rpcs.labels("served")
        ranges = Counter("headrace_zone_cache_ranges_total", "Ranges in those calls", ["direction"], registry=registry)
        self.ranges_sent = ranges.labels("sent")
        self.ranges_served = ranges.labels("served")
        self.refused = Counter(
            "headrace_zone_cache_refused_total", "Calls refused for an invalid MAC", registry=registry
        )
        fallbacks = Counter(
            "headrace_zone_cache_fallbacks_total",
            "Ranges read from the object store because their owner did not deliver them",
            ["reason"],
            registry=registry,
        )
        self._fallbacks = from_zero(fallbacks, Fallback)

    def fell_back(self, reason: Fallback, ranges: int = 1) -> None:
        """Count ranges that were read from the store instead."""
        self._fallbacks.labels(reason.value).inc(ranges)


class ChunkOwners:
    """The owners that follow from the newest image."""

    def __init__(self, view: ClusterView, on_members: Callable[[Sequence[AgentImage]], None]) -> None:
        """`on_members` is called with the agents of the zone whenever they may have changed."""
        self._view = view
        self._on_members = on_members
        self._image: MetadataImage | None = None
        self._members: list[AgentImage] = []

    def owner(self, file_id: uuid.UUID, chunk: int) -> AgentImage | None:
        """The other agent to ask for the chunk; None if this agent is the owner, or there is no other."""
        members = self._zone()
        if not members:
            return None
        chosen = preferred(chunk_role(file_id, chunk), members)
        return None if chosen is None or chosen.node_id == self._view.node_id else chosen

    def _zone(self) -> list[AgentImage]:
        """The active agents of this agent's zone; empty while it is alone or not registered."""
        image = self._view.image
        if image is not self._image:
            own = image.agents.get(self._view.node_id)
            members = [] if own is None else [agent for agent in image.live_agents() if agent.rack == own.rack]
            self._members = members if len(members) > 1 or (members and members[0] is not own) else []
            self._image = image
            self._on_members(self._members)
        return self._members


log = logging.getLogger(__name__)

CONNECTIONS = 4
"""Connections per agent: answers come in order, so one that waits for the store delays those behind it."""
AWAITED_BYTES_MAX = MAX_ANSWER_BYTES
"""Awaited ranges per agent, over all its connections."""
REST_SECONDS = 1.0
SLOW_CALLS = 3
"""After this many calls in a row without an answer in time, the agent is skipped for a while."""


class _Peer:
    """The state of one other agent."""

    def __init__(self) -> None:
        self.connections: list[PeerConnection] = []
        self.choosing = asyncio.Lock()
        self.awaited_bytes = 0
        self.slow_calls = 0
        self.rests_until = 0.0


class Peers:
    """The zone's other agents that were called."""

    def __init__(
        self,
        terms: PeerTerms,
        clock: Clock,
        metrics: ZoneCacheMetrics,
        *,
        timeout_ms: int,
    ) -> None:
        self._terms = terms
        self._clock = clock
        self._metrics = metrics
        self._timeout = timeout_ms / 1000
        self._peers: dict[tuple[int, int], _Peer] = {}

    async def ask(self, agent: AgentImage, ranges: Sequence[FileRange]) -> list[memoryview | Fallback]:
        """Return what the agent has of each range, in order."""
        size = sum(wanted.end - wanted.start for wanted in ranges)
        peer = self._peers.setdefault((agent.node_id, agent.broker_epoch), _Peer())
        if self._clock.monotonic() < peer.rests_until:
            return [Fallback.RESTING] * len(ranges)
        if peer.awaited_bytes + size > AWAITED_BYTES_MAX or len(ranges) > MAX_RANGES:
            return [Fallback.BUSY] * len(ranges)
        peer.awaited_bytes += size
        try:
            return await self._ask(peer, agent, ranges)
        finally:
            peer.awaited_bytes -= size

    def forget_gone(self, agents: Sequence[AgentImage]) -> None:
        """Close the connections to agents that are not among these any more."""
        stay = {(agent.node_id, agent.broker_epoch) for agent in agents}
        for key in self._peers.keys() - stay:
            self._disconnect(self._peers.pop(key))

    def close(self) -> None:
        """Close every connection."""
        self.forget_gone(())

    async def _ask(self, peer: _Peer, agent: AgentImage, ranges: Sequence[FileRange]) -> list[memoryview | Fallback]:
        try:
            answers = await within(self._clock, self._timeout, self._exchange(peer, agent, ranges))
        except TimeoutError:
            return self._failed(peer, agent, Fallback.SLOW, "no answer in time", len(ranges))
        except CorruptError as error:
            return self._failed(peer, agent, Fallback.WRONG, error, len(ranges))
        except HeadraceError as error:
            return self._failed(peer, agent, Fallback.DOWN, error, len(ranges))
        peer.slow_calls = 0
        return [self._judge(agent, answer) for answer in answers]

    async def _exchange(
        self, peer: _Peer, agent: AgentImage, ranges: Sequence[FileRange]
    ) -> list[memoryview | int | CorruptError]:
        async with peer.choosing:  # else many parallel calls would each open one
            connection = await self._connection(peer, agent)
        ask = Ask(self._terms.now_ms(), self._terms.own_node_id(), agent.node_id, list(ranges))
        correlation_id = connection.next_id()
        frame, mac = encode_ask(ask, self._terms.secret, correlation_id)
        self._metrics.rpcs_sent.inc()
        self._metrics.ranges_sent.inc(len(ranges))
        answer = await connection.ask(correlation_id, frame, largest_answer(ranges))
        return decode_answer(answer, self._terms.secret, mac, ranges)

    async def _connection(self, peer: _Peer, agent: AgentImage) -> PeerConnection:
        """The connection with the fewest calls; a new one while all are in use and there may be more."""
        peer.connections = [connection for connection in peer.connections if not connection.closed]
        idlest = min(peer.connections, key=lambda connection: connection.waiting, default=None)
        if idlest is not None and (not idlest.waiting or len(peer.connections) >= CONNECTIONS):
            return idlest
        address = agent.endpoint(self._terms.listener)
        opened = await self._terms.connect(ZONE_CACHE, address.host, address.port)
        peer.connections.append(opened)
        if self._peers.get((agent.node_id, agent.broker_epoch)) is not peer:  # removed meanwhile
            self._disconnect(peer)
            raise ZONE_CACHE.error(UnavailableError, f"agent left: node_id={agent.node_id}")
        return opened

    def _judge(self, agent: AgentImage, answer: memoryview | int | CorruptError) -> memoryview | Fallback:
        if isinstance(answer, memoryview):
            return answer
        if isinstance(answer, CorruptError):
            log.warning("zone cache: wrong bytes: from=%d error=%s", agent.node_id, answer)
            return Fallback.WRONG
        return Fallback.BUSY if answer == BUSY else Fallback.FAILED

    def _failed(
        self, peer: _Peer, agent: AgentImage, reason: Fallback, error: object, ranges: int
    ) -> list[memoryview | Fallback]:
        """Skip the agent for a while, unless it was slow only once."""
        peer.slow_calls += 1
        if reason is not Fallback.SLOW or peer.slow_calls >= SLOW_CALLS:
            log.warning(
                "zone cache: agent skipped for a while: node_id=%d reason=%s error=%s", agent.node_id, reason, error
            )
            peer.rests_until = self._clock.monotonic() + REST_SECONDS
            peer.slow_calls = 0
            self._disconnect(peer)
        return [reason] * ranges

    def _disconnect(self, peer: _Peer) -> None:
        connections, peer.connections = peer.connections, []
        for connection in connections:
            connection.close()


_Key = tuple[uuid.UUID, int, int]
_Arrival = asyncio.Future[memoryview | None]
"""A range's bytes, or None: read them from the store."""


class SharedCache:
    """Reads as the chunk cache does, asking the zone first."""

    def __init__(
        self, cache: ChunkCache, owners: ChunkOwners, peers: Peers, metrics: ZoneCacheMetrics, fetch: FetchMetrics
    ) -> None:
        self._cache = cache
        self.owners = owners
        self._peers = peers
        self._metrics = metrics
        self._fetch_metrics = fetch
        self._asked: dict[_Key, _Arrival] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def read(self, ranges: Sequence[FileRange]) -> list[RangeBytes | HeadraceError]:
        """One result per range, in order; a range may span chunks."""
        calls: dict[int, tuple[AgentImage, list[FileRange]]] = {}
        plans = [[(within, self._arrival(within, calls)) for within in self._by_chunk(wanted)] for wanted in ranges]
        for owner, asked in calls.values():
            call = asyncio.create_task(self._call(owner, asked))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        return await asyncio.gather(*(self._assemble(plan) for plan in plans))

    async def close(self) -> None:
        """Cancel the calls in progress, also for their readers."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        self._peers.close()

    def _by_chunk(self, wanted: FileRange) -> list[FileRange]:
        return [wanted._replace(start=start, end=end) for start, end in self._cache.split(wanted.start, wanted.end)]

    def _arrival(self, wanted: FileRange, calls: dict[int, tuple[AgentImage, list[FileRange]]]) -> _Arrival | None:
        """Return what to wait for, adding the range to its owner's call unless it is asked already; None: read it
        here.
        """
        if self._cache.peek(wanted.file_id, wanted.start, wanted.end) or self._cache.was_forgotten(wanted.file_id):
            return None
        key = wanted.file_id, wanted.start, wanted.end
        arrival = self._asked.get(key)
        if arrival is None:
            owner = self.owners.owner(wanted.file_id, self._cache.chunk_of(wanted.start))
            if owner is None:
                return None
            calls.setdefault(owner.node_id, (owner, []))[1].append(wanted)
            arrival = self._asked[key] = asyncio.get_running_loop().create_future()
        return arrival

    async def _call(self, owner: AgentImage, ranges: list[FileRange]) -> None:
        """Send one call, keep the answer, and wake all its waiters."""
        answers: list[memoryview | Fallback] = []
        try:
            answers = await self._peers.ask(owner, ranges)
        finally:
            for number, wanted in enumerate(ranges):
                arrival = self._asked.pop((wanted.file_id, wanted.start, wanted.end))
                arrival.set_result(self._take(wanted, answers[number]) if answers else None)

    def _take(self, wanted: FileRange, answer: memoryview | Fallback) -> memoryview | None:
        if isinstance(answer, Fallback):
            self._metrics.fell_back(answer)
            return None
        self._fetch_metrics.read_from_zone.inc(len(answer))
        kept = memoryview(bytes(answer))  # a view would keep the whole answer in memory
        self._cache.keep_range(wanted.file_id, wanted.start, kept)
        return kept

    async def _assemble(self, plan: Sequence[tuple[FileRange, _Arrival | None]]) -> RangeBytes | HeadraceError:
        try:
            bodies = await asyncio.gather(*(self._read(wanted, arrival) for wanted, arrival in plan))
        except HeadraceError as error:
            return error
        return bodies[0] if len(bodies) == 1 else RangeBytes(joined([body.data for body in bodies]), checked=False)

    async def _read(self, wanted: FileRange, arrival: _Arrival | None) -> RangeBytes:
        # Shielded: the call continues for the others if this reader's connection closes.
        data = None if arrival is None else await asyncio.shield(arrival)
        return RangeBytes(data, checked=False) if data is not None else await self._cache.read(wanted)
