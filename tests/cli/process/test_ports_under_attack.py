"""One rule for all listeners: on each port the same five attacks, and ordinary clients that are served meanwhile.

The attacker has many connections of one address, more than the port's limit. An ordinary client that was connected
before stays connected, and another one can connect. In the end all connections of the attacker are closed, by deadlines
that a clock or a setting of the test makes short.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.access.listener_security import ListenerSecurity
from headrace.agent.limits.metrics import limits_reached
from headrace.agent.listener import tls_protocol
from headrace.agent.listener.admission import Newcomers
from headrace.agent.listener.server import KafkaListener
from headrace.cli.console.server import ConsoleOptions, ConsoleServer
from headrace.cli.process import http_server
from headrace.cli.process.http_security import HttpSecurity
from headrace.cli.process.http_server import BoundedConnection, HttpServer, bounded
from headrace.config.listeners import listeners
from headrace.config.load import load
from headrace.config.settings import Settings
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.transport import client_config
from headrace.protocol.request import CloseConnection, Request, Response
from headrace.storage.clock import SystemClock
from tests.agent.access.certificates import Authority
from tests.agent.listener.listener_client import MIB, Client, answer, frame, limits, until
from tests.agent.listener.proxy_headers import proxy_header
from tests.manual_clock import ManualClock
from tests.patch import Patch

pytestmark = pytest.mark.requirement("X7")

STRANGER, OTHER = "127.0.0.66", "127.0.0.1"
CONNECTIONS = 12
"""All that a Kafka port takes; more than a tenth of it is never left to one address."""
NEWCOMERS = 4
ATTACKERS = 20
WAIT_SECONDS = 1.0
"""Limit in seconds of HTTP, which measures real time. An ordinary client asks within it, also on a busy machine."""
API_VERSIONS, SASL_AUTHENTICATE = int(ApiKey.API_VERSIONS), int(ApiKey.SASL_AUTHENTICATE)
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass
class Port:
    """A port, and what both sides send there."""

    number: int
    request: bytes
    """Answered, also before authentication."""
    ask: Callable[[Client], Awaitable[None]]
    """An ordinary client's request and its answer; the first authenticates."""
    let_time_pass: Callable[[], Awaitable[None]]
    open_connections: Callable[[], int]
    trust: ssl.SSLContext | None = None
    is_proxied: bool = False

    async def client(self, address: str, *, encrypts: bool = True) -> Client:
        """A connection. Not encrypted: with the first bytes of an encrypted one, if the port is."""
        reader, writer = await asyncio.open_connection(OTHER, self.number, local_addr=(address, 0))
        if self.is_proxied:
            writer.write(proxy_header((address, 1), (OTHER, self.number)))
        if self.trust is not None and encrypts:
            await writer.start_tls(self.trust, server_hostname=OTHER)
        return Client(reader, writer)


# -- the attacks

Attack = Callable[[Port], Awaitable[Client]]


async def silent(port: Port) -> Client:
    return await port.client(STRANGER, encrypts=False)


async def half_a_request(port: Port) -> Client:
    return await _begun(port, len(port.request) - 3)


async def slow_bytes(port: Port) -> Client:
    client = await _begun(port, 1)
    for byte in port.request[1:5]:
        client.writer.write(bytes((byte,)))
        await asyncio.sleep(0)
    return client


async def not_reading(port: Port) -> Client:
    client = await port.client(STRANGER)
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    client.writer.write(port.request)
    return client


async def pipelining(port: Port) -> Client:
    client = await not_reading(port)
    client.writer.write(port.request * 200)
    return client


async def _begun(port: Port, size: int) -> Client:
    """Return the beginning of the handshake, if there is one."""
    client = await port.client(STRANGER, encrypts=False)
    first = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" if port.trust is not None else port.request
    client.writer.write(first[:size])
    return client


ATTACKS: list[Attack] = [silent, half_a_request, not_reading, pipelining, slow_bytes]


# -- the ports


async def _answer(request: Request) -> Response:
    """The same as an agent: ApiVersions for all, other requests after authentication."""
    if request.api_key == SASL_AUTHENTICATE:
        request.connection.principal = "User:alice"
    elif request.api_key != API_VERSIONS and not request.connection.is_known:
        raise CloseConnection("not authenticated")
    return answer(request, bytes(64 * 1024) if request.api_key == API_VERSIONS else b"")


async def _ask_kafka(client: Client) -> None:
    for api_key in (SASL_AUTHENTICATE, int(ApiKey.METADATA)):
        await client.send(frame(7, api_key=api_key))
        assert (await client.reply())[0] == 7


@contextlib.asynccontextmanager
async def kafka(
    directory: Path, protocol: str, *, proxied: bool = False, for_agents: bool = False
) -> AsyncIterator[Port]:
    authority, clock = Authority(directory), ManualClock()
    flags = {"listeners": f"{protocol}://127.0.0.1:0", "ssl.keystore.location": str(authority.issue("broker"))}
    settings = load(flags=dict(flags))
    (endpoint,) = listeners(settings).serving
    security = None if protocol == "PLAINTEXT" else ListenerSecurity(settings, endpoint, clock)
    allowed = replace(limits(connections=CONNECTIONS), max_unauthenticated_connections=NEWCOMERS)
    listener = KafkaListener(_answer, allowed, clock, CollectorRegistry())
    number = await listener.start(OTHER, 0, protocol, proxy_protocol=proxied, security=security, for_agents=for_agents)
    trust = ssl.create_default_context(cafile=str(authority.path)) if endpoint.security_protocol.has_tls else None

    async def pass_by() -> None:
        for _ in range(30):  # also what is only noticed after another deadline
            await clock.advance(60)

    def count() -> int:
        return int(listener.memory_in_use()["connections"]())

    try:
        yield Port(number, frame(1, api_key=API_VERSIONS), _ask_kafka, pass_by, count, trust, proxied)
    finally:
        await listener.drain(0)


async def _ask_http(client: Client) -> None:
    await client.send(GET)
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head
    await client.reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))


async def _pass_by() -> None:
    """Real time passes by itself."""


Send = Callable[[dict[str, object]], Awaitable[None]]


async def _large(scope: object, receive: object, send: Send) -> None:
    body = bytes(MIB) if scope["path"] == "/large" else b"alive"  # type: ignore[index]
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def http(directory: Path, *, encrypted: bool = False) -> AsyncIterator[Port]:
    authority, registry = Authority(directory), CollectorRegistry()
    key = str(authority.issue("agent")) if encrypted else ""
    connection = bounded(NEWCOMERS, limits_reached(registry))
    security = HttpSecurity(Settings(http_ssl_keystore_location=key), SystemClock())
    server = HttpServer(_large, OTHER, 0, security.encrypted(connection))  # type: ignore[arg-type]
    trust = ssl.create_default_context(cafile=str(authority.path)) if encrypted else None
    server.start()
    try:
        large = GET.replace(b"/healthz", b"/large")
        yield Port(server.port, large, _ask_http, _pass_by, lambda: _open(connection), trust)
    finally:
        await asyncio.to_thread(server.stop)


@contextlib.asynccontextmanager
async def console(directory: Path) -> AsyncIterator[Port]:
    settings = Settings(http_max_connections=NEWCOMERS)
    made: list[type[BoundedConnection]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.cli.console.server.bounded", lambda *given: made.append(bounded(*given)) or made[0])
        server = ConsoleServer(ConsoleOptions(client_config("127.0.0.1:1", None), settings, (OTHER, 0)), SystemClock())
    server.http.start()
    try:
        yield Port(server.http.port, GET, _ask_http, _pass_by, lambda: _open(made[0]))
    finally:
        await asyncio.to_thread(server.http.stop)
        server.close()


def _open(connection: type[BoundedConnection]) -> int:
    return connection.room.waiting + connection.room.served


PORTS: dict[str, Callable[[Path], contextlib.AbstractAsyncContextManager[Port]]] = {
    "plain": lambda at: kafka(at, "PLAINTEXT"),
    "tls": lambda at: kafka(at, "SSL"),
    "sasl": lambda at: kafka(at, "SASL_PLAINTEXT"),
    "sasl_tls": lambda at: kafka(at, "SASL_SSL"),
    "balancer": lambda at: kafka(at, "SSL", proxied=True),
    "agents": lambda at: kafka(at, "SASL_PLAINTEXT", for_agents=True),
    "http": http,
    "https": lambda at: http(at, encrypted=True),
    "console": console,
}


EVERYDAY = ("plain", "sasl_tls", "https")
"""Ports that together have what the others have: `make test` attacks these in every way, the others in one."""


def _cases() -> Iterator[Any]:
    for name in PORTS:
        for attack in ATTACKS:
            marks = () if name in EVERYDAY or attack is silent else pytest.mark.slow
            yield pytest.param(name, attack, id=f"{name}-{attack.__name__}", marks=marks)


@pytest.mark.parametrize(("name", "attack"), list(_cases()))
async def test_ordinary_clients_are_served(
    name: str, attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "WAIT_SECONDS", WAIT_SECONDS)
    monkeypatch.setattr(tls_protocol, "SHUTDOWN_SECONDS", WAIT_SECONDS)
    await _attacked(name, attack, tmp_path)


async def _attacked(name: str, attack: Attack, directory: Path) -> None:
    async with PORTS[name](directory) as port:
        is_http = port.let_time_pass is _pass_by
        before = await port.client(OTHER)
        await port.ask(before)
        attackers = []
        for _ in range(ATTACKERS):
            with contextlib.suppress(OSError):
                attackers.append(await attack(port))
        if not is_http:  # there a client that asks nothing for a while is closed, too
            await port.ask(before)
        another = await port.client(OTHER)
        await port.ask(another)
        await port.let_time_pass()
        await until(lambda: port.open_connections() == 0)
        for client in (before, another, *attackers):
            client.writer.transport.abort()


def _newest_goes(self: Newcomers, now: float) -> bool:
    """The same as it was: those who wait stay, newer ones are turned away."""
    self._end(next(reversed(self._all)), for_others=True)
    return True


async def _body_not_sent(port: Port) -> Client:
    client = await port.client(STRANGER)
    client.writer.write(b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
    return client


async def _read_first(scope: object, receive: Callable[[], Awaitable[object]], send: Send) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def test_bodies_that_are_not_sent_keep_out_no_other_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "WAIT_SECONDS", WAIT_SECONDS)
    monkeypatch.setattr("tests.cli.process.test_ports_under_attack._large", _read_first)
    await _attacked("http", _body_not_sent, tmp_path)


@pytest.mark.parametrize(
    ("name", "attack", "planted"),
    [
        ("sasl_tls", silent, (Newcomers, "displace", _newest_goes)),
        ("https", silent, (Newcomers, "displace", _newest_goes)),
    ],
)
async def test_planted_bugs_shut_the_port(
    name: str,
    attack: Attack,
    planted: tuple[type, str, object],
    tmp_path: Path,
    patch: Patch,
) -> None:
    patch.replace(http_server, "WAIT_SECONDS", 60.0)
    patch.replace(*planted)
    with pytest.raises((OSError, EOFError)):
        await _attacked(name, attack, tmp_path)
