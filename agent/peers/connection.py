"""One connection to another agent: pipelined requests, answers in their order.

Place: under the asking side of each channel; the other end is the agent's Kafka listener. PeerTerms is what one
agent needs to talk to the others: the cluster's secret, its node id, the clock they share, connections. Forwarding
and health reports get it from agent/serve/paths.py, the zone cache from agent/fetch/service.py.
Invariant: an answer is at most as large as its request allows; no other frame is read. It goes to the caller with
its correlation id, or is dropped if the caller was cancelled.
Every failure closes the connection, and all callers that wait on it get an error at once.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.agent.peers.channel import Channel
from headrace.protocol import wire
from headrace.protocol.frames import FrameReader
from headrace.storage.errors import InvalidError, UnavailableError

_SLAB_BYTES = 64 * 1024


class PeerConnection(asyncio.BufferedProtocol):
    """Created by `open_connection`. For one event loop."""

    _transport: asyncio.Transport

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.closed = False
        self._frames = FrameReader(0)
        self._slab = memoryview(bytearray(_SLAB_BYTES))
        self._direct = False
        self._waiting: dict[int, tuple[asyncio.Future[memoryview], int]] = {}
        """Correlation id -> (the caller, bytes of the largest answer), in the order of the requests."""
        self._last_id = 0

    @property
    def waiting(self) -> int:
        """Requests without an answer, including cancelled ones."""
        return len(self._waiting)

    def next_id(self) -> int:
        """A correlation id for the next request."""
        self._last_id += 1
        return self._last_id

    async def ask(self, correlation_id: int, frame: bytes, largest_answer: int) -> memoryview:
        """Send a request frame; the response frame. UnavailableError if the connection closes before, also because
        of an answer with more than `largest_answer` bytes.

        If the caller is cancelled, the answer is dropped when it arrives.
        """
        return await self.send(correlation_id, frame, largest_answer)

    def send(self, correlation_id: int, frame: bytes, largest_answer: int) -> asyncio.Future[memoryview]:
        """The same as `ask`, sent before this returns."""
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        if self.closed:
            answer.set_exception(self._channel.error(UnavailableError, "connection closed"))
        else:
            self._waiting[correlation_id] = answer, largest_answer
            self._transport.write(frame)
        return answer

    def tell(self, frame: bytes) -> None:
        """Send a request frame that is not answered."""
        self._transport.write(frame)

    def close(self) -> None:
        """Close it; waiting callers get UnavailableError."""
        self._transport.abort()

    # -- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        vacant = self._frames.vacant()
        self._direct = vacant is not None
        return self._slab if vacant is None else vacant

    def buffer_updated(self, nbytes: int) -> None:
        if self._direct:
            self._frames.filled(nbytes)
            self._cut(memoryview(b""))
        else:
            self._cut(self._slab[:nbytes])

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        waiting, self._waiting = self._waiting, {}
        for answer, _ in waiting.values():
            if not answer.done():
                answer.set_exception(self._channel.error(UnavailableError, f"connection lost: {exc}"))

    def _cut(self, data: memoryview) -> None:
        try:
            while True:
                if self._frames.frame is not None:
                    data = self._frames.fill(data)
                else:
                    self._frames.allow(next((largest for _, largest in self._waiting.values()), 0))
                    head, data = self._frames.read_head(data)
                    if head is None:
                        return
                    data = self._frames.open(head, data)
                frame = self._frames.take()
                if frame is None:
                    return
                self._deliver(frame)
        except InvalidError:
            self.close()

    def _deliver(self, frame: memoryview) -> None:
        (correlation_id,) = wire.INT32.unpack_from(frame)
        asked = self._waiting.pop(correlation_id, None)
        if asked is None:
            raise self._channel.error(InvalidError, f"answer without a request: correlation_id={correlation_id}")
        answer, _ = asked
        if not answer.done():
            answer.set_result(frame)


Connect = Callable[[Channel, str, int], Awaitable[PeerConnection]]


async def open_connection(
    channel: Channel, host: str, port: int, tls: Callable[[], ssl.SSLContext | None] = lambda: None
) -> PeerConnection:
    """Connect, encrypted if `tls` returns a context; UnavailableError if that fails."""
    loop = asyncio.get_running_loop()
    try:
        _, protocol = await loop.create_connection(lambda: PeerConnection(channel), host, port, ssl=tls())
    except OSError as error:
        event = f"cannot connect: host={host} port={port} error={error}"
        raise channel.error(UnavailableError, event) from error
    return protocol


@dataclass(frozen=True, slots=True)
class PeerTerms:
    """The terms of one agent."""

    secret: bytes
    """Only the cluster's agents have it (metastore/api/cluster.py)."""
    own_node_id: Callable[[], int]
    """-1 until it has registered."""
    now_ms: Callable[[], int]
    """The database's clock: messages that are too old are refused by it."""
    listener: str | None = None
    """inter.broker.listener.name; None: agents are asked at their first listener."""
    connect: Connect = open_connection
