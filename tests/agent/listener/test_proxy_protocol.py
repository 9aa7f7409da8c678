"""PROXY protocol version 2: the client's address survives a balancer, and nothing else passes as a header."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.listener.proxy_header import HEADER_BYTES_MAX, SIGNATURE, ProxyHeader, read_proxy_header
from headrace.agent.listener.server import KafkaListener
from headrace.protocol.request import Request, Response
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError
from tests.agent.listener.listener_client import Client, answer, frame, limits
from tests.agent.listener.proxy_headers import proxy_header
from tests.manual_clock import ManualClock

CLIENT, SERVER = ("192.0.2.7", 50_123), ("198.51.100.1", 9092)
V6 = ("2001:db8::7", 50_124)


def _header(command: int = 0x21, family: int = 0x11, rest: bytes = b"", length: int | None = None) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, family, len(rest) if length is None else length) + rest


@pytest.mark.parametrize("client", [CLIENT, V6])
def test_the_client_is_read_once_the_header_is_complete(client: tuple[str, int]) -> None:
    data = proxy_header(client, SERVER if client is CLIENT else V6)
    for size in range(len(data)):
        assert read_proxy_header(data[:size]) is None
    assert read_proxy_header(data + b"more") == ProxyHeader(client, len(data))


def test_extensions_are_skipped_and_a_local_connection_names_no_client() -> None:
    extended = proxy_header(CLIENT, SERVER)
    extended = extended[:14] + struct.pack(">H", 12 + 7) + extended[16:] + b"\x04\x00\x04pad!"
    assert read_proxy_header(extended) == ProxyHeader(CLIENT, len(extended))
    assert read_proxy_header(_header(0x20, 0x00)) == ProxyHeader(None, 16)
    assert read_proxy_header(_header(0x20, 0x11, bytes(12))) == ProxyHeader(None, 28)
    assert read_proxy_header(_header(0x21, 0x00, b"x")) == ProxyHeader(None, 17)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(1), "another protocol's"),
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 1 2\r\n", "version 1 is not supported"),
        (b"P", "another protocol's"),
        (_header(0x11, 0x11, bytes(12)), "unknown version or command"),
        (_header(0x22, 0x11, bytes(12)), "unknown version or command"),
        (_header(0x21, 0x12, bytes(12)), "neither TCP over IPv4"),
        (_header(0x21, 0x31, bytes(216)), "neither TCP over IPv4"),
        (_header(0x21, 0x11, bytes(11)), "neither TCP over IPv4"),
        (_header(0x21, 0x21, bytes(35)), "neither TCP over IPv4"),
        (_header(0x21, 0x11, length=HEADER_BYTES_MAX), "too long"),
    ],
)
def test_a_malformed_header_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidError, match=reason):
        read_proxy_header(data)


def test_random_headers_are_read_or_refused() -> None:
    rng = random.Random(1)
    for _ in range(5_000):
        data = SIGNATURE[: rng.randrange(13)] + rng.randbytes(rng.randrange(40))
        try:
            found = read_proxy_header(data)
        except InvalidError:
            continue
        assert found is None or found.size <= len(data)


class Peers:
    """Answers with the peer that it sees."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.registry = CollectorRegistry()
        self.listener = KafkaListener(self._handle, limits(), clock or SystemClock(), self.registry)

    async def connect(self) -> Client:
        return await Client.connect(self.port)

    async def start(self) -> None:
        self.port = await self.listener.start("127.0.0.1", 0, proxy_protocol=True)

    async def _handle(self, request: Request) -> Response:
        return answer(request, request.connection.peer.encode())


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    made = Peers()
    await made.start()
    yield made
    await made.listener.drain(0)


async def test_handlers_see_the_client_however_the_bytes_arrive(peers: Peers) -> None:
    data = proxy_header(CLIENT, SERVER) + frame(1) + frame(2)
    for pieces in ([data], [data[:5], data[5:]], [data[:28], data[28:]], [data[:40], data[40:]]):
        client = await peers.connect()
        for piece in pieces:
            await client.send(piece)
            await asyncio.sleep(0.01)
        assert [await client.reply(), await client.reply()] == [(1, b"192.0.2.7:50123"), (2, b"192.0.2.7:50123")]
        await client.close()


async def test_large_frames_follow_the_header(peers: Peers) -> None:
    client = await peers.connect()
    await client.send(proxy_header(V6, V6) + frame(1, b"x" * 2_000_000))
    assert await client.reply() == (1, b"2001:db8::7:50124")
    await client.close()


async def test_a_connection_without_a_header_is_closed(peers: Peers) -> None:
    client = await peers.connect()
    await client.send(frame(1))
    assert await client.ended() == b""
    await client.close()
    closed = peers.registry.get_sample_value("headrace_kafka_connections_closed_total", {"reason": "proxy_header"})
    assert closed == 1


async def test_a_connection_that_waits_with_its_header_is_closed(fake_clock: ManualClock) -> None:
    peers = Peers(fake_clock)
    await peers.start()
    client = await peers.connect()
    await client.send(SIGNATURE)
    await asyncio.sleep(0.05)
    await fake_clock.advance(limits().unauthenticated_connections_max_ms / 1000 + 1)
    assert await client.ended() == b""
    await client.close()
    await peers.listener.drain(0)
