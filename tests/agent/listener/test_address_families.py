"""Listeners and the HTTP port on IPv4, on IPv6 and on both.

Ports are those of `free_ports`: at one that the system gives, another program may listen on the other family.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.limits.metrics import limits_reached
from headrace.agent.listener import sockets as module
from headrace.agent.listener.server import KafkaListener
from headrace.agent.listener.sockets import bound_sockets
from headrace.cli.process.http_server import HttpServer, bounded
from headrace.config.addresses import address_text, is_every_address, unmapped
from headrace.config.free_ports import free_ports
from headrace.protocol.request import Request, Response
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError
from tests.agent.listener.listener_client import limits
from tests.ipv6 import has_ipv6

EVERYWHERE = ("127.0.0.1", "::1")
pytestmark = pytest.mark.skipif(not has_ipv6(), reason="needs IPv6")


def connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 60).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "reached"),
    [("::", (True, True)), ("0.0.0.0", (True, False)), ("127.0.0.1", (True, False)), ("::1", (False, True))],
)
async def test_a_listener_takes_the_families_of_its_address(host: str, reached: tuple[bool, bool]) -> None:
    async def nothing(request: Request) -> Response:
        raise AssertionError(request)

    listener = KafkaListener(nothing, limits(), SystemClock(), CollectorRegistry())
    port = await listener.start(host, *free_ports(1))
    assert tuple(connects(address, port) for address in EVERYWHERE) == reached
    await listener.drain(0)


@pytest.mark.parametrize(
    ("host", "reached"), [("::", (True, True)), ("0.0.0.0", (True, False)), ("::1", (False, True))]
)
def test_the_http_port_takes_the_families_of_its_address(host: str, reached: tuple[bool, bool]) -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]

    server = HttpServer(app, host, *free_ports(1), bounded(9, limits_reached(CollectorRegistry())))
    server.start()
    try:
        assert tuple(connects(address, server.port) for address in EVERYWHERE) == reached
        address = EVERYWHERE[reached.index(True)]
        with urllib.request.urlopen(f"http://{address_text(address, server.port)}/", timeout=60) as answer:
            assert answer.status == 204
    finally:
        server.stop()


def test_all_addresses_of_a_name_have_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a name with an address that this machine does not have."""
    found = [(socket.AF_INET6, 1, 6, "", ("2001:db8::1", 0, 0, 0))]
    found += [(socket.AF_INET, 1, 6, "", ("127.0.0.1", 0)), (socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0))]  # type: ignore[list-item]
    monkeypatch.setattr(module.socket, "getaddrinfo", lambda *_, **__: found)
    sockets = bound_sockets("localhost", 0, 1)
    monkeypatch.undo()
    (port,) = {each.getsockname()[1] for each in sockets}
    assert [connects(address, port) for address in EVERYWHERE] == [True, True]
    for each in sockets:
        each.close()
    monkeypatch.setattr(module.socket, "getaddrinfo", lambda *_, **__: found[:1])
    with pytest.raises(OSError, match=r"."):
        bound_sockets("localhost", 0, 1)


@pytest.mark.parametrize("times", [1, 10])
def test_a_port_that_the_next_address_does_not_have_free_is_changed(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where port 0 asks for any; ten times in a row it is an error."""
    real, left = module._bound, [times]

    def bound(family: int, address: tuple[object, ...], backlog: int) -> socket.socket:
        if family == socket.AF_INET6 and left[0]:
            left[0] -= 1
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return real(family, address, backlog)

    found = [(socket.AF_INET, 1, 6, "", ("127.0.0.1", 0)), (socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0))]
    monkeypatch.setattr(module, "_bound", bound)
    monkeypatch.setattr(module.socket, "getaddrinfo", lambda *_, **__: found)
    if times == 10:
        with pytest.raises(OSError, match="in use"):
            bound_sockets("localhost", 0, 1)
    else:
        sockets = bound_sockets("localhost", 0, 1)
        assert len({each.getsockname()[1] for each in sockets}) == 1
        assert len(sockets) == 2
        for each in sockets:
            each.close()


def test_every_address_is_that_of_ipv4_where_the_kernel_has_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_ipv6(family: int, kind: int, protocol: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, kind, protocol)

    monkeypatch.setattr(module.socket, "socket", without_ipv6)
    (bound,) = bound_sockets("::", 0, 1)
    monkeypatch.undo()
    assert connects("127.0.0.1", bound.getsockname()[1])
    bound.close()


@pytest.mark.parametrize("host", ["no such host", "::1%nowhere"])
def test_a_name_that_is_not_found_is_one_line_with_the_reason(host: str) -> None:
    """http.host=:: ended with 'Unknown error -9'."""
    with pytest.raises(InvalidError, match=r"cannot listen on .*; choose another http.port") as refused:
        HttpServer(None, host, 0, object)  # type: ignore[arg-type]
    assert "Unknown error" not in str(refused.value)


@pytest.mark.parametrize(
    ("host", "text"), [("::1", "[::1]:1"), ("10.0.0.1", "10.0.0.1:1"), ("kafka.example", "kafka.example:1")]
)
def test_an_address_with_a_port_has_brackets_where_it_needs_them(host: str, text: str) -> None:
    assert address_text(host, 1) == text


def test_an_ipv4_client_of_a_socket_for_both_has_its_ipv4_address() -> None:
    with bound_sockets("::", 0, 1)[0] as bound, socket.create_connection(("127.0.0.1", bound.getsockname()[1])):
        connection, sender = bound.accept()
        connection.close()
    assert sender[0] == "::ffff:127.0.0.1"
    assert unmapped(sender[0]) == "127.0.0.1"
    assert [unmapped(host) for host in ("::1", "10.0.0.1", "::ffff:0")] == ["::1", "10.0.0.1", "::ffff:0"]


def test_every_address_has_several_forms() -> None:
    assert all(is_every_address(host) for host in ("::", "0.0.0.0", "0:0:0:0:0:0:0:0"))
    assert not any(is_every_address(host) for host in ("::1", "localhost", "10.0.0.1", ""))


async def test_answers_do_not_wait_for_the_acknowledgement_of_earlier_ones() -> None:
    """asyncio switches TCP_NODELAY on only for sockets that name their protocol."""
    (bound,) = bound_sockets("127.0.0.1", 0, 1)
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_connection(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(on_connection, sock=bound):
        _, writer = await asyncio.open_connection(*bound.getsockname())
        assert await accepted == 1
        writer.close()
