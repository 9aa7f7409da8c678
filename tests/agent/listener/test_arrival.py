"""Accepted sockets before their client is known: admitted at accept, limited in number and time, closed for others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.access.listener_security import ListenerSecurity
from headrace.agent.listener import server as arrival
from headrace.agent.listener.server import KafkaListener
from headrace.config.listeners import listeners
from headrace.config.load import load
from headrace.config.memory_budget import CONNECTION_BYTES, TLS_CONNECTION_BYTES, TLS_HANDSHAKE_BYTES
from headrace.protocol.request import CloseConnection, Request, Response
from tests.agent.access.certificates import Authority
from tests.agent.listener.listener_client import Client, answer, frame, limits, until
from tests.agent.listener.proxy_headers import proxy_header
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.requirement("X2", "X7")

ATTACKER, OTHER = "127.0.0.66", "127.0.0.1"
MOST = 5
SASL_AUTHENTICATE = 36
BETWEEN_AGENTS = 31_299


async def _handle(request: Request) -> Response:
    """The same as on a listener with SASL: a client authenticates with one request."""
    if request.api_key == SASL_AUTHENTICATE:
        request.connection.principal = "User:alice"
    elif request.api_key == BETWEEN_AGENTS:
        request.connection.is_agent = True
    elif not request.connection.is_known:
        raise CloseConnection("not authenticated")
    return answer(request, request.connection.peer.encode())


@dataclass
class World:
    """One listener, with a clock that only the test moves."""

    listener: KafkaListener
    port: int
    registry: CollectorRegistry
    clock: ManualClock
    trust: ssl.SSLContext | None

    def closed(self, reason: str) -> float:
        return self.registry.get_sample_value("headrace_kafka_connections_closed_total", {"reason": reason}) or 0.0

    @property
    def waiting(self) -> float:
        return self.registry.get_sample_value("headrace_kafka_unauthenticated_connections") or 0.0

    @property
    def memory(self) -> float:
        return self.listener.memory_in_use()["connections"]()

    async def silent(self, count: int, header: bytes = b"") -> list[Client]:
        """Connections of the attacker that say nothing, after `header`."""
        found = []
        for _ in range(count):
            found.append(Client(*await asyncio.open_connection(OTHER, self.port, local_addr=(ATTACKER, 0))))
            found[-1].writer.write(header)
        return found

    async def client(self, header: bytes = b"") -> Client:
        """An ordinary one, after its handshake."""
        reader, writer = await asyncio.open_connection(OTHER, self.port)
        writer.write(header)
        if self.trust is not None:
            await writer.start_tls(self.trust, server_hostname=OTHER)
        return Client(reader, writer)


async def _is_served(client: Client, *, authenticates: bool = False) -> str:
    """Return which address the listener sees."""
    if authenticates:
        await client.send(frame(1, api_key=SASL_AUTHENTICATE))
        assert (await client.reply())[0] == 1
    await client.send(frame(2))
    correlation_id, peer = await client.reply()
    assert correlation_id == 2
    return peer.decode().rpartition(":")[0]


@contextlib.asynccontextmanager
async def serving(
    directory: Path, protocol: str, *, proxied: bool = False, for_agents: bool = False, **own: Any
) -> AsyncIterator[World]:
    """`own`: of Limits."""
    authority, registry, clock = Authority(directory), CollectorRegistry(), ManualClock()
    flags: dict[str, object] = {"listeners": f"{protocol}://127.0.0.1:0"}
    flags["ssl.keystore.location"] = str(authority.issue("broker", "broker.pem"))
    settings = load(flags=flags)
    (endpoint,) = listeners(settings).serving
    security = None if protocol == "PLAINTEXT" else ListenerSecurity(settings, endpoint, clock)
    allowed = replace(limits(), **({"max_unauthenticated_connections": MOST} | own))
    listener = KafkaListener(_handle, allowed, clock, registry)
    port = await listener.start(OTHER, 0, protocol, proxy_protocol=proxied, security=security, for_agents=for_agents)
    trust = ssl.create_default_context(cafile=str(authority.path)) if endpoint.security_protocol.has_tls else None
    try:
        yield World(listener, port, registry, clock, trust)
    finally:
        await listener.drain(0)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL", "SASL_PLAINTEXT"])
async def test_silent_connections_keep_out_no_other_client(tmp_path: Path, protocol: str) -> None:
    """1,000 of one address stopped every TLS handshake: those who waited stayed, and newer ones were turned away."""
    authenticates = protocol.startswith("SASL")
    async with serving(tmp_path, protocol) as world:
        before = await world.client()
        await _is_served(before, authenticates=authenticates)
        silent = await world.silent(4 * MOST)
        await until(lambda: world.closed("too_many_unauthenticated") == 3 * MOST)
        for _ in range(3):
            another = await world.client()
            await _is_served(another, authenticates=authenticates)
            await another.close()
        await _is_served(before)
        await before.close()
        for client in silent:
            await client.close()


@pytest.mark.parametrize("names_itself", [True, False])
async def test_the_address_behind_a_balancer_counts(tmp_path: Path, names_itself: bool) -> None:
    server = ("127.0.0.1", 1)
    async with serving(tmp_path, "SSL", proxied=True) as world:
        header = proxy_header(("203.0.113.66", 1), server) if names_itself else b""
        silent = await world.silent(4 * MOST, header)
        await until(lambda: world.closed("too_many_unauthenticated") == 3 * MOST)
        client = await world.client(proxy_header(("203.0.113.7", 2), server))
        assert await _is_served(client) == "203.0.113.7"
        await client.close()
        for each in silent:
            await each.close()


@pytest.mark.parametrize(
    ("limit", "reason"),
    [("max_connections_per_ip", "too_many_of_address"), ("max_connection_creation_rate", "too_fast")],
)
async def test_limits_hold_before_the_handshake(
    tmp_path: Path, limit: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    original = arrival.TlsProtocol

    def counted(*given: Any) -> arrival.TlsProtocol:
        made.append(given)
        return original(*given)

    monkeypatch.setattr(arrival, "TlsProtocol", counted)
    async with serving(tmp_path, "SSL", **{limit: 2}) as world:
        silent = await world.silent(MOST)
        await until(lambda: world.closed(reason) == MOST - 2)
        for client in silent:
            client.writer.write(first_bytes("SSL", False))
        await until(lambda: len(made) == 2)
        for client in silent[2:]:
            with contextlib.suppress(ConnectionResetError):  # it wrote to a closed connection
                assert await client.ended() == b""
        assert len(made) == 2, "TLS allocates nothing for the others"


async def test_a_newcomer_makes_room_where_all_connections_are_taken(tmp_path: Path) -> None:
    async with serving(tmp_path, "SSL", max_connections=MOST, max_unauthenticated_connections=MOST) as world:
        known = await world.client()
        await _is_served(known)
        silent = await world.silent(MOST - 1)
        await until(lambda: world.waiting == MOST - 1)
        another = await world.client()
        await _is_served(another)
        await _is_served(known)
        assert world.closed("too_many_unauthenticated") == 1
        for each in (known, another, *silent):
            await each.close()


@pytest.mark.parametrize(
    ("protocol", "proxied", "reason"),
    [
        ("PLAINTEXT", True, "proxy_header"),
        ("SSL", False, "tls_handshake"),
        ("SASL_PLAINTEXT", False, "unauthenticated"),
    ],
)
async def test_the_time_for_it_ends(tmp_path: Path, protocol: str, proxied: bool, reason: str) -> None:
    async with serving(tmp_path, protocol, proxied=proxied, unauthenticated_connections_max_ms=30_000) as world:
        known = await world.client(proxy_header(("203.0.113.7", 2), ("127.0.0.1", 1)) if proxied else b"")
        await _is_served(known, authenticates=protocol.startswith("SASL"))
        silent, slow = await world.silent(2)
        await until(lambda: world.waiting == 2)
        for byte in first_bytes(protocol, proxied):
            slow.writer.write(bytes([byte]))
            await world.clock.advance(1)
        assert world.closed(reason) == 0
        await world.clock.advance(13)
        for client in (silent, slow):
            assert await client.ended() == b""
        assert (world.waiting, world.closed(reason)) == (0, 2)
        await _is_served(known)
        await known.close()


async def test_an_agent_that_has_shown_the_clusters_secret_stays(tmp_path: Path) -> None:
    """It does not authenticate by SASL: its requests carry the secret's HMAC."""
    async with serving(tmp_path, "SASL_PLAINTEXT", for_agents=True) as world:
        agent = await world.client()
        for _ in range(3):
            await agent.send(frame(1, api_key=BETWEEN_AGENTS))
            assert (await agent.reply())[0] == 1
            await world.clock.advance(100)
        assert world.waiting == 0
        await agent.close()


def first_bytes(protocol: str, proxied: bool) -> bytes:
    """Return the first bytes of what an ordinary client sends first, so that the listener continues to wait."""
    if proxied:
        return proxy_header(("203.0.113.7", 2), ("127.0.0.1", 1))[:20]
    if protocol == "SASL_PLAINTEXT":
        return frame(1, bytes(100))[:20]
    return b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(9)  # a ClientHello's


async def test_what_sockets_take_is_counted_until_they_end(tmp_path: Path) -> None:
    async with serving(tmp_path, "SSL") as world:
        assert world.memory == 0
        known = await world.client()
        await _is_served(known)
        silent = await world.silent(MOST)
        await until(lambda: world.waiting == MOST)
        assert world.memory == TLS_CONNECTION_BYTES + MOST * CONNECTION_BYTES, "TLS allocates nothing before a byte"
        for client in silent:
            client.writer.write(first_bytes("SSL", False))
        await until(lambda: world.memory == TLS_CONNECTION_BYTES + MOST * TLS_HANDSHAKE_BYTES)
        for client in (*silent, known):
            await client.close()
        await until(lambda: world.memory == 0 and world.waiting == 0)


async def test_a_failed_handshake_names_its_client_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving(tmp_path, "SSL") as world:
        for _ in range(20):
            (client,) = await world.silent(1, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await client.ended()
        await until(lambda: world.closed("tls_handshake") == 20)
        lines = [record.getMessage() for record in caplog.records if "tls_handshake" in record.getMessage()]
        assert len(lines) == 1
        assert f"peer={ATTACKER}:" in lines[0]
        assert "listener=SSL" in lines[0]
        assert "HTTP_REQUEST" in lines[0] or "http request" in lines[0]


async def test_a_drain_ends_those_who_wait(tmp_path: Path) -> None:
    async with serving(tmp_path, "SSL", proxied=True) as world:
        waiting = await world.silent(2)
        await until(lambda: world.waiting == 2)
        world.listener.suspend(True)
        for client in waiting:
            assert await client.ended() == b""
        assert world.memory == 0


async def _come_and_go(world: World, refs: list[weakref.ref[object]]) -> None:
    """Silent connections, and clients that were served."""
    for client in await world.silent(MOST):
        await client.close()
    for _ in range(MOST):
        client = await world.client()
        await _is_served(client)
        refs += [weakref.ref(each) for each in world.listener._host.connections]
        await client.close()
    await until(lambda: world.memory == 0)
    await until(lambda: not any(ref() for ref in refs))


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
async def test_what_connections_took_is_free_without_the_garbage_collector(
    tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs rarely in an agent: 4,000 TLS connections that came and went left 139 MiB."""
    refs: list[weakref.ref[object]] = []
    original = arrival.AcceptedSocket.__init__

    def noted(self: arrival.AcceptedSocket, *given: Any) -> None:
        original(self, *given)
        refs.append(weakref.ref(self))
        refs.append(weakref.ref(self._transport))

    monkeypatch.setattr(arrival.AcceptedSocket, "__init__", noted)
    async with serving(tmp_path, protocol) as world:
        gc.disable()
        try:
            await _come_and_go(world, refs)
        finally:
            gc.enable()
