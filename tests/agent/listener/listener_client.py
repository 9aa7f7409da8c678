"""A listener on a free port, and a client that speaks frames to it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from headrace.agent.access.listener_security import ListenerSecurity
from headrace.agent.listener.host import Limits
from headrace.agent.listener.server import KafkaListener
from headrace.protocol.request import Request, RequestHandler, Response
from headrace.storage.clock import Clock, SystemClock

MIB = 1024 * 1024
METADATA, PRODUCE = 3, 0
DRAIN_SECONDS = 5.0


def limits(
    *,
    request_max: int = 10 * MIB,
    memory: int = 64 * MIB,
    inflight: int = 64,
    connections: int = 100,
    idle_ms: int = 600_000,
) -> Limits:
    return Limits(request_max, memory, inflight, connections, idle_ms)


def frame(correlation_id: int, body: bytes = b"", api_key: int = METADATA, version: int = 1) -> bytes:
    """A request with its length; metadata v1 has no tagged fields."""
    header = struct.pack(">hhih4s", api_key, version, correlation_id, 4, b"test")
    return struct.pack(">i", len(header) + len(body)) + header + body


def produce_frame(correlation_id: int, size: int) -> bytes:
    """A produce frame with a body of `size` bytes (the listener does not look into it)."""
    return frame(correlation_id, b"p" * size, api_key=PRODUCE, version=7)


@dataclass
class Client:
    """One connection. A frame that does not come fails the test by pytest's own time limit."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))
        await self.writer.drain()

    async def reply(self) -> tuple[int, bytes]:
        """(correlation id, what follows it)."""
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        data = await self.reader.readexactly(size)
        return struct.unpack(">i", data[:4])[0], data[4:]

    async def ended(self) -> bytes:
        """Return what still comes before the server closes the connection."""
        rest = b""
        try:
            while data := await self.reader.read(MIB):
                rest += data
        except ConnectionResetError:
            pass
        return rest

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


@dataclass
class Listening:
    """A started listener and what belongs to it."""

    listener: KafkaListener
    port: int
    registry: CollectorRegistry
    clients: list[Client] = field(default_factory=list)
    """Those that `connect` made: they are closed when the test is over."""

    async def connect(self) -> Client:
        self.clients.append(await Client.connect(self.port))
        return self.clients[-1]

    def metric(self, name: str, **labels: str) -> float:
        """A sample's value; 0 when nothing was counted yet."""
        return self.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def listening(
    handler: RequestHandler,
    allowed: Limits | None = None,
    clock: Clock | None = None,
    security: ListenerSecurity | None = None,
    name: str = "PLAINTEXT",
) -> AsyncIterator[Listening]:
    """A listener until the block ends; then it is drained."""
    registry = CollectorRegistry()
    listener = KafkaListener(handler, allowed or limits(), clock or SystemClock(), registry)
    port = await listener.start("127.0.0.1", 0, name, security=security)
    found = Listening(listener, port, registry)
    try:
        yield found
    finally:
        for client in found.clients:
            await client.close()
        await listener.drain(DRAIN_SECONDS if clock is None else 0.0)


async def until(condition: object) -> None:
    """Let the loop run until `condition()` holds; a busy machine's sockets may need more than turns of it."""
    assert callable(condition)
    for turn in range(80_000):
        if condition():
            return
        await asyncio.sleep(0 if turn < 20_000 else 0.001)
    raise AssertionError("the condition never came true")


def answer(request: Request, body: bytes | memoryview = b"") -> Response:
    return Response([struct.pack(">i", request.correlation_id), body])


async def echo(request: Request) -> Response:
    return answer(request, request.body)


class Gate:
    """A handler that answers each request when the test says so."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self._open: dict[int, asyncio.Event] = {}

    async def handle(self, request: Request) -> Response:
        self.started.append(request.correlation_id)
        await self._event(request.correlation_id).wait()
        return answer(request)

    def open(self, *correlation_ids: int) -> None:
        for correlation_id in correlation_ids:
            self._event(correlation_id).set()

    def has_started(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.started) >= count

    def _event(self, correlation_id: int) -> asyncio.Event:
        return self._open.setdefault(correlation_id, asyncio.Event())
