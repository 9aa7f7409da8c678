"""Requests to the other agents of the zone: one call each, few connections, a deadline, no queue.

Place: between shared.py, which decides what to request from which agent, and connection.py.
Invariant: a call ends within the deadline, regardless of the other agent; ranges that were not delivered in
time or not correctly are a Fallback, never an error and never a wrong byte. The number of awaited ranges per agent is
limited: above it nothing is requested. After failures an agent is skipped for a while, so a crashed agent rarely
costs a reader the deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from headrace.agent.fetch.zone_cache.metrics import Fallback, ZoneCacheMetrics
from headrace.agent.peers.channel import ZONE_CACHE
from headrace.agent.peers.connection import PeerConnection
from headrace.agent.peers.terms import PeerTerms
from headrace.agent.peers.zone_cache_wire import (
    BUSY,
    MAX_ANSWER_BYTES,
    MAX_RANGES,
    Ask,
    decode_answer,
    encode_ask,
    largest_answer,
)
from headrace.metastore.log.image import AgentImage
from headrace.storage.clock import Clock, within
from headrace.storage.errors import CorruptError, HeadraceError, UnavailableError
from headrace.storage.segment.file_range import FileRange

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
