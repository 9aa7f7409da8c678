"""A link between two agents in memory: real bytes, a clock that the test moves, and delivery when the test says so.

Fault model: what was written is delivered later, all at once, or never: the connection may be cut between two
deliveries, in either direction. Clients disconnect at any time. The other agent may refuse connections.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable, Collection

from prometheus_client import CollectorRegistry

from headrace.agent.peers.channel import ENVELOPE_KEY, OPEN_KEY, Channel
from headrace.agent.peers.connection import PeerConnection, PeerTerms
from headrace.agent.peers.forwarding.links import Answer, ForwardLink, ForwardMetrics
from headrace.agent.peers.forwarding.service import ForwardServer
from headrace.metastore.api.agents import Listener
from headrace.protocol.frames import read_request_header
from headrace.protocol.request import ClientConnection, Request, Response
from headrace.storage.errors import UnavailableError
from tests.manual_clock import ManualClock

SECRET = b"secret"
HEARTBEAT = 12
HERE, THERE = 1, 2
_LENGTH = struct.Struct(">i")


class _Pipe(asyncio.Transport):
    """Keeps what the link writes until it is delivered."""

    def __init__(self, protocol: PeerConnection) -> None:
        super().__init__()
        self.protocol = protocol
        self.written: list[bytes] = []
        self.cut = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.cut:
            self.written.append(bytes(data))

    def abort(self) -> None:
        if not self.cut:
            self.cut = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class LinkWorld:
    """Agent 1 forwards to agent 2. `handle` serves requests there."""

    def __init__(
        self,
        clock: ManualClock,
        handle: Callable[[Request], Awaitable[Response]],
        *,
        link: type[ForwardLink] = ForwardLink,
        server: type[ForwardServer] = ForwardServer,
        served: Collection[int] = (HEARTBEAT,),
        secret: bytes = SECRET,
        proves: Callable[[int], bool] = lambda node_id: True,
    ) -> None:
        """`proves`: what agent 2 knows of agent 1's registration."""
        self.clock = clock
        self.registry, self.served_registry = CollectorRegistry(), CollectorRegistry()
        self._handler = handle
        self.refuses = False
        self.lag_seconds = 0.0
        """Of the other agent's clock."""
        metrics = ForwardMetrics(self.registry)
        self.link = link(
            THERE,
            Listener("INTERNAL", "there", 1, 0),
            PeerTerms(secret, lambda: HERE, clock.wall_ms, connect=self._connect),
            clock,
            random.Random(1),
            metrics,
        )
        self.server = server(
            PeerTerms(SECRET, lambda: THERE, clock.wall_ms),
            self._handle,
            random.Random(2),
            ForwardMetrics(self.served_registry),
            proves,
        )
        self.server.served = frozenset(served)
        self.pipes: list[tuple[_Pipe, ClientConnection]] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._ended: set[int] = set()
        self.gone: set[int] = set()
        """Clients that ended before the last delivery."""
        self.server_error: AssertionError | None = None
        """Of a handler."""

    def client(self, number: int) -> ClientConnection:
        """A client's connection to agent 1, which tells the link when it ends."""
        found = ClientConnection(number, f"10.0.0.1:{number}", listener="PLAINTEXT")
        found.when_closed = lambda: self.link.ended(number)
        return found

    def end(self, client: ClientConnection) -> None:
        """The client disconnects."""
        client.closed = True
        self._ended.add(client.connection_id)
        assert client.when_closed is not None
        client.when_closed()

    def forward(self, client: ClientConnection, number: int, body: bytes = b"") -> asyncio.Future[Answer]:
        """A client's request; its correlation id is `number`."""
        request = Request(
            client, HEARTBEAT, 4, number, "c", memoryview(body or str(number).encode()), self.clock.monotonic()
        )
        return self.link.forward(request)

    async def deliver(self) -> None:
        """Everything that was written arrives at agent 2, in one piece, and what it answers at once arrives here."""
        self.gone |= self._ended
        for pipe, there in list(self.pipes):
            frames, pipe.written = pipe.written, []
            for frame in frames:
                self._receive(pipe, there, frame)
        await self.clock.settle()

    async def open(self) -> None:
        """Deliver the opening and its answer."""
        await self.clock.settle()
        await self.deliver()
        await self.clock.settle()

    def cut(self) -> None:
        """The connection breaks; what is on its way is lost."""
        for pipe, there in self.pipes:
            if not pipe.cut:
                pipe.written.clear()
                pipe.abort()
                there.closed = True
                if there.when_closed is not None:
                    there.when_closed()

    def refused(self) -> float:
        """Return what agent 2 has refused."""
        return self.served_registry.get_sample_value("headrace_forwarded_refused_total") or 0.0

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    async def _handle(self, request: Request) -> Response:
        try:
            return await self._handler(request)
        except AssertionError as error:
            self.server_error = self.server_error or error
            raise

    async def _connect(self, channel: Channel, host: str, port: int) -> PeerConnection:
        if self.refuses:
            raise UnavailableError("refused")
        protocol = PeerConnection(channel)
        pipe = _Pipe(protocol)
        protocol.connection_made(pipe)
        self.pipes.append((pipe, ClientConnection(1000 + len(self.pipes), "127.0.0.1:5", listener="INTERNAL")))
        return protocol

    def _receive(self, pipe: _Pipe, there: ClientConnection, frame: bytes) -> None:
        """Do the same as the listener of agent 2."""
        view = memoryview(frame)[_LENGTH.size :]
        api_key, version, number, client_id, start = read_request_header(view)
        request = Request(there, api_key, version, number, client_id, view[start:], self.clock.monotonic())
        handlers = {OPEN_KEY: self.server.open, ENVELOPE_KEY: self.server.serve}
        try:
            answer = handlers[api_key](request)
        except Exception:
            pipe.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(pipe, answer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, pipe: _Pipe, answer: Awaitable[Response]) -> None:
        response = await answer
        if response.buffers is not None and not pipe.cut:
            data = b"".join(response.buffers)
            pipe.protocol._cut(memoryview(_LENGTH.pack(len(data)) + data))
