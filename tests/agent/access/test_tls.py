"""A listener with TLS: encrypted in both directions, new certificates without a closed connection, principals."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.access.listener_security import ListenerSecurity
from headrace.agent.access.tls import LOOK_SECONDS
from headrace.agent.listener.replies import ReplyWriter
from headrace.agent.listener.server import KafkaListener
from headrace.config.errors import ConfigError
from headrace.config.listeners import listeners
from headrace.config.load import load
from headrace.protocol.request import Request, RequestHandler, Response
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.repetition import SECONDS
from tests.agent.access.certificates import Authority
from tests.agent.listener.listener_client import Client, answer, echo, frame, limits, produce_frame, until
from tests.agent.listener.proxy_headers import proxy_header
from tests.manual_clock import ManualClock
from tests.patch import Patch

MARK = b"what-nobody-may-read-on-the-way"


class World:
    """A listener with TLS, and contexts of clients."""

    def __init__(self, authority: Authority, port: int, registry: CollectorRegistry) -> None:
        self.authority, self.port, self.registry = authority, port, registry

    def context(self, certificate: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.path))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context

    async def connect(self, certificate: Path | None = None, port: int | None = None) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", port or self.port, ssl=self.context(certificate)))

    def closed(self, reason: str) -> float:
        return self.registry.get_sample_value("headrace_kafka_connections_closed_total", {"reason": reason}) or 0.0


@contextlib.asynccontextmanager
async def serving(
    directory: Path,
    handler: RequestHandler = echo,
    clock: Clock | None = None,
    *,
    proxied: bool = False,
    inflight: int = 64,
    **own: str,
) -> AsyncIterator[World]:
    """`inflight`: most requests in progress of a connection. `own`: settings of the listener, with _ for dots."""
    authority = Authority(directory)
    key = authority.issue("broker", "broker.pem")
    flags: dict[str, object] = {"listeners": "EXT://127.0.0.1:0", "listener.security.protocol.map": "EXT:SSL"}
    flags |= {"listener.name.ext.ssl.keystore.location": str(key)}
    flags |= {"listener.name.ext.ssl.truststore.location": str(authority.path)}
    flags |= {f"listener.name.ext.{name.replace('_', '.')}": value for name, value in own.items()}
    settings, registry = load(flags=flags), CollectorRegistry()
    (endpoint,) = listeners(settings).serving
    security = ListenerSecurity(settings, endpoint, clock or SystemClock())
    listener = KafkaListener(handler, limits(inflight=inflight), SystemClock(), registry)
    port = await listener.start(endpoint.host, 0, "EXT", proxy_protocol=proxied, security=security)
    try:
        yield World(authority, port, registry)
    finally:
        await listener.drain(1.0)


class Tap:
    """A wire between client and listener that keeps what passes."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.seen = b""
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self._target)
        for source, sink in ((reader, there[1]), (there[0], writer)):
            self._tasks.add(asyncio.create_task(self._copy(source, sink)))

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            self.seen += data
            sink.write(data)
        sink.close()


async def _send_marks(world: World) -> bytes:
    """Return what passed on the wire while marks went to the listener and came back, in small and large replies."""
    tap = Tap(world.port)
    client = await world.connect(port=await tap.start())
    for number, times in enumerate((1, 10, 20_000)):
        await client.send(frame(number, MARK * times))
        assert await client.reply() == (number, MARK * times)
    await client.close()
    await tap.stop()
    return tap.seen


async def test_no_byte_of_a_record_passes_in_plain_text(tmp_path: Path) -> None:
    """X2: what an onlooker between client and agent sees. Replies went past TLS with os.writev."""
    async with serving(tmp_path) as world:
        seen = await _send_marks(world)
    assert MARK not in seen
    assert len(seen) > 2 * 20_000 * len(MARK)


async def test_the_tap_sees_replies_that_pass_tls_by(tmp_path: Path, patch: Patch) -> None:
    """The planted bug: the writer uses the socket below TLS."""
    original = ReplyWriter.begin

    def past_tls(self: ReplyWriter) -> None:
        original(self)
        self._is_encrypted, self._socket = False, self._transport.get_extra_info("socket")

    patch.replace(ReplyWriter, "begin", past_tls)
    async with serving(tmp_path) as world:
        with pytest.raises((ssl.SSLError, asyncio.IncompleteReadError)):
            await _send_marks(world)
    # the client cannot read it, but it was on the wire
    async with serving(tmp_path) as world:
        tap = Tap(world.port)
        client = await world.connect(port=await tap.start())
        await client.send(frame(0, MARK))
        await until(lambda: MARK in tap.seen)
        await tap.stop()


async def test_replies_come_whole_and_in_order_also_to_a_slow_reader(tmp_path: Path) -> None:
    rng = random.Random(3)
    sizes = [rng.choice((0, 1, 30, 5_000, 70_000, 900_000)) for _ in range(40)]
    bodies = [rng.randbytes(size) for size in sizes]

    async def reply(request: Request) -> Response:
        body = bodies[request.correlation_id]
        middle = len(body) // 2
        return Response([struct.pack(">i", request.correlation_id), body[:middle], memoryview(body)[middle:]])

    async with serving(tmp_path, reply) as world:
        client = await world.connect()
        await client.send(*(frame(number) for number in range(len(bodies))))
        for number, body in enumerate(bodies):
            assert await client.reply() == (number, body)
            if number % 10 == 0:
                await asyncio.sleep(0.01)
        await client.close()


async def test_a_new_certificate_counts_for_new_connections_and_open_ones_go_on(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path, clock=clock) as world:
        first = await world.connect()
        before = _serial(first)
        world.authority.issue("broker", "broker.pem")
        second = await world.connect()
        assert _serial(second) == before, "files are looked at once per LOOK_SECONDS"
        clock.jump(LOOK_SECONDS)
        third = await world.connect()
        assert _serial(third) != before
        expires = world.registry.get_sample_value("headrace_listener_certificate_expiry_seconds", {"listener": "EXT"})
        assert expires == ssl.cert_time_to_seconds(third.writer.get_extra_info("peercert")["notAfter"])
        for number, client in enumerate((first, second, third)):
            await client.send(frame(number, b"still here"))
            assert await client.reply() == (number, b"still here")
            await client.close()


async def test_half_a_renewal_keeps_the_earlier_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with serving(tmp_path, clock=clock) as world:
        (tmp_path / "broker.pem").write_text("-----BEGIN CERTIFICATE-----\n")
        clock.jump(LOOK_SECONDS)
        client = await world.connect()
        await client.close()
    assert "certificates not reloaded" in caplog.text


def _serial(client: Client) -> str:
    certificate = client.writer.get_extra_info("peercert")
    return str(certificate["serialNumber"])


async def _principal(request: Request) -> Response:
    return answer(request, str(request.connection.principal).encode())


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("DEFAULT", "User:CN=orders,OU=team,C=CH"),
        ("RULE:^CN=([^,]+),.*$/$1/U,DEFAULT", "User:ORDERS"),
        ("RULE:^OU=(.*)$/$1/L,RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/", "User:orders@team"),
    ],
)
async def test_a_certificate_names_the_principal(tmp_path: Path, rules: str, expected: str) -> None:
    own = {"ssl_client_auth": "required", "ssl_principal_mapping_rules": rules}
    async with serving(tmp_path, _principal, **own) as world:
        certificate = world.authority.issue("orders", COUNTRY_NAME="CH", ORGANIZATIONAL_UNIT_NAME="team")
        client = await world.connect(certificate)
        await client.send(frame(1))
        assert await client.reply() == (1, expected.encode())
        await client.close()


async def test_without_a_certificate_a_client_is_anonymous_or_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, _principal, ssl_client_auth="requested") as world:
        client = await world.connect()
        await client.send(frame(1))
        assert await client.reply() == (1, b"User:ANONYMOUS")
        await client.close()
    async with serving(tmp_path, _principal, ssl_client_auth="required") as world:
        await _is_refused(world)
        await until(lambda: world.closed("tls_handshake") == 1)


async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, _principal, ssl_client_auth="required") as world:
        await _is_refused(world, Authority(tmp_path, "other").issue("orders"))


async def test_a_subject_that_no_rule_matches_is_refused(tmp_path: Path) -> None:
    own = {"ssl_client_auth": "required", "ssl_principal_mapping_rules": "RULE:^CN=admin$/admin/"}
    async with serving(tmp_path, _principal, **own) as world:
        await _is_refused(world, world.authority.issue("orders"))
        assert world.closed("certificate") == 1


async def _is_refused(world: World, certificate: Path | None = None) -> None:
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await _ask(world, certificate)


async def _ask(world: World, certificate: Path | None) -> None:
    client = await world.connect(certificate)
    await client.send(frame(1))
    await client.reply()


async def test_a_plaintext_client_costs_one_handshake_and_no_more(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        client = await Client.connect(world.port)
        await client.send(frame(1))
        await client.ended()
        await until(lambda: world.closed("tls_handshake") == 1)


async def test_the_handshake_follows_the_header_of_a_balancer(tmp_path: Path) -> None:
    async def peer(request: Request) -> Response:
        return answer(request, request.connection.peer.encode())

    async with serving(tmp_path, peer, proxied=True) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(proxy_header(("203.0.113.7", 4711), ("127.0.0.1", world.port)))
        await writer.start_tls(world.context(), server_hostname="127.0.0.1")
        client = Client(reader, writer)
        await client.send(frame(1))
        assert await client.reply() == (1, b"203.0.113.7:4711")
        await client.close()


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"ssl.keystore.location": "/nowhere.pem"}, "ssl.keystore.location: no private key"),
        ({"ssl.key.password": "wrong"}, "ssl.keystore.location: no private key"),
        ({"ssl.truststore.location": "/nowhere.pem"}, "ssl.truststore.location: no certificates"),
        ({"ssl.cipher.suites": "ROT13"}, "ssl.cipher.suites: OpenSSL knows none"),
        ({"ssl.principal.mapping.rules": "CN=x"}, "ssl.principal.mapping.rules: not RULE:"),
        ({"ssl.principal.mapping.rules": "RULE:(/x/"}, "ssl.principal.mapping.rules: missing"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, own: dict[str, object], told: str) -> None:
    authority = Authority(tmp_path)
    flags: dict[str, object] = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": str(authority.issue("broker", password="right")),
        "ssl.key.password": "right",
        "ssl.truststore.location": str(authority.path),
    }
    settings = load(flags=flags | own)
    with pytest.raises(ConfigError, match=told):
        ListenerSecurity(settings, listeners(settings).serving[0], SystemClock())


async def test_a_tls_client_of_a_plain_listener_is_named_once_per_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    listener = KafkaListener(echo, limits(), clock, CollectorRegistry())
    port = await listener.start("127.0.0.1", 0)
    for _ in range(5):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())
    assert caplog.text.count("the client speaks TLS, and this listener does not") == 1
    clock.jump(SECONDS)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())
    assert caplog.text.count("the client speaks TLS") == 2
    assert "left_out=4" in caplog.text
    await listener.drain(1.0)


@pytest.mark.requirement("X7")
async def test_a_producer_that_reads_no_answers_is_not_read_either(tmp_path: Path) -> None:
    """512 Produce requests may be in progress; answers that it does not take stop the next ones."""
    started: list[int] = []
    body = bytes(50_000)

    async def handle(request: Request) -> Response:
        started.append(request.correlation_id)
        return answer(request, body)

    async with serving(tmp_path, handle, inflight=512) as world:
        client, other = await world.connect(), await world.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(*(produce_frame(number, 100) for number in range(800)))
        await until(lambda: len(started) >= 64)
        for number in range(10_000, 10_010):
            await other.send(frame(number))
            assert (await other.reply())[0] == number
        unread = sum(number < 10_000 for number in started)
        assert unread < 500, "those that its socket holds, and some"
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert [(await client.reply())[0] for _ in range(800)] == list(range(800))
        assert [number for number in started if number < 10_000] == list(range(800))
        for each in (client, other):
            await each.close()
