"""Agents that share a file cache, in one process: one bucket, one clock, links that a test can cut or bend.

Fault model: per agent the link to it can refuse, stay silent, alter its answers or its questions; the
bucket is fetch_world's FaultyStore. Questions and answers cross as bytes of the real wire format.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType

from prometheus_client import CollectorRegistry

from headrace.agent.cluster.zone import ZoneTraffic
from headrace.agent.fetch.files.cache import ChunkCache
from headrace.agent.fetch.files.read import RangeReader
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.zone_cache.serving import ZoneCache
from headrace.agent.peers.channel import ZONE_CACHE, Channel
from headrace.agent.peers.connection import PeerConnection, PeerTerms
from headrace.config.settings import Settings
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.protocol.frames import read_request_header
from headrace.protocol.request import ClientConnection, Request
from headrace.storage.errors import HeadraceError, UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.segment.file_range import FileRange, RangeBytes
from load.contexts import a_context
from tests.agent.cluster.standing_view import StandingView
from tests.agent.fetch.fetch_world import BROKER_EPOCH, NODE_ID, FaultyStore
from tests.manual_clock import ManualClock

SECRET = b"s" * 32
CHUNK = 1000
TIMEOUT_MS = 500


class Member:
    """One agent. `down`, `silent` and `bend` are what its neighbours meet."""

    def __init__(self, zone: Zone, node_id: int, rack: str | None, secret: bytes) -> None:
        self.node_id, self.rack = node_id, rack
        self.registry = CollectorRegistry()
        self.view = StandingView(4, node_id=NODE_ID, broker_epoch=BROKER_EPOCH)
        self.view.node_id = node_id
        self.down = False
        self.silent = False
        self.bend: Callable[[bytes], bytes] = lambda answer: answer
        self.bend_question: Callable[[bytes], bytes] = lambda question: question
        self.skew_ms = 0
        metrics = FetchMetrics(self.registry)
        self.cache = ChunkCache(zone.store, metrics, capacity_bytes=100_000, chunk_bytes=CHUNK)
        self.zone_cache = ZoneCache(
            a_context(None, zone.clock, settings=Settings(zone_cache_timeout_ms=TIMEOUT_MS), registry=self.registry),
            PeerTerms(
                secret,
                lambda: self.view.node_id,
                lambda: zone.clock.wall_ms() + self.skew_ms,
                connect=zone.connect,
            ),
            self.cache,
            self.view,
            ZoneTraffic(rack, self.registry),
            metrics,
        )
        self.reader = RangeReader(zone.store, self.cache, lambda _: 0, metrics, self.zone_cache.shared)

    def metric(self, name: str, **labels: str) -> float:
        """A sample; 0 when it was never counted."""
        return self.registry.get_sample_value(f"headrace_{name}", labels) or 0.0


class Link(PeerConnection):
    """A connection without sockets: the other agent's handler is called with the frame's bytes."""

    def __init__(self, member: Member, clock: ManualClock) -> None:
        super().__init__(ZONE_CACHE)
        self._member = member
        self._clock = clock

    async def ask(self, correlation_id: int, frame: bytes, largest_answer: int) -> memoryview:
        member = self._member
        if member.down or self.closed:
            raise UnavailableError("link down")
        if member.silent:
            await self._clock.sleep(1e9)
        question = memoryview(member.bend_question(frame[4:]))
        header = read_request_header(question)
        connection = ClientConnection(1, "peer")
        request = Request(
            connection, header.api_key, header.api_version, correlation_id, None, question[header.body_start :], 0.0
        )
        try:
            response = await member.zone_cache.handle(request)
        except Exception as error:  # as the listener does: any exception of a handler ends the connection
            raise UnavailableError(f"connection closed: {error}") from error
        assert response.buffers is not None
        assert connection.is_agent, "else the listener closes the connection of an agent that never authenticates"
        return memoryview(member.bend(b"".join(response.buffers)))

    def close(self) -> None:
        self.closed = True


class Zone:
    """`members` by node id; every member sees all of them, live."""

    def __init__(self, racks: Sequence[str | None], secrets: Sequence[bytes] | None = None) -> None:
        self.store = FaultyStore()
        self.clock = ManualClock()
        self.connects: list[int] = []
        secrets = secrets or [SECRET] * len(racks)
        self.members = {
            node_id: Member(self, node_id, rack, secret)
            for node_id, (rack, secret) in enumerate(zip(racks, secrets, strict=True), start=1)
        }
        self.show({})

    def show(self, fenced: dict[int, bool]) -> None:
        """A new image for all agents."""
        agents = {
            m.node_id: AgentImage(
                m.node_id, 1, uuid.UUID(int=m.node_id), "host", m.node_id, m.rack, fenced.get(m.node_id, False)
            )
            for m in self.members.values()
        }
        image = replace(MetadataImage(), agents=MappingProxyType(agents))
        for member in self.members.values():
            member.view.image = image

    async def connect(self, channel: Channel, host: str, port: int) -> PeerConnection:
        assert channel is ZONE_CACHE
        self.connects.append(port)
        if self.members[port].down:
            raise UnavailableError("refused")
        return Link(self.members[port], self.clock)

    async def put(self, number: int, size: int) -> tuple[uuid.UUID, bytes]:
        """A file with unique bytes."""
        file_id = uuid.UUID(int=number)
        data = b"".join(struct.pack(">Q", number << 32 | i) for i in range(size // 8))
        await self.store.put(object_key(file_id), data)
        return file_id, data

    async def read(self, node_id: int, *slices: FileRange) -> list[RangeBytes | HeadraceError]:
        """Return what the agent's reader gets, with time moving on."""
        return await self.clock.run(self.members[node_id].reader.read(slices))


def recent(file_id: uuid.UUID, start: int, end: int, live_end: int = 0) -> FileRange:
    """A slice near the high watermark."""
    return FileRange(file_id, start, end, live_end or end, recent=True)
