"""The HTTP listener under idle and slow connections, and log lines and messages that a client cannot forge."""

from __future__ import annotations

import asyncio
import io
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.agent.limits.metrics import limits_reached
from headrace.cli.process import http_server
from headrace.cli.process.http_app import Part, make_app
from headrace.cli.process.http_server import BoundedConnection, HttpServer, bounded
from headrace.cli.process.logs import OneLineFormatter
from headrace.storage.errors import InvalidError
from tests.agent.listener.listener_client import until
from tests.patch import Patch

pytestmark = pytest.mark.requirement("X7")
MOST = 4
STRANGER = "127.0.0.66"
PARTS, PART_BYTES = 32, 1024 * 1024
"""Sizes of a response: more than kernels keep for a connection."""


class _Probe:
    def warnings(self) -> list[str]:
        return []

    def parts(self) -> list[Part]:
        return []

    async def status(self) -> dict[str, object]:
        return {}


@asynccontextmanager
async def _serving(
    connection: type[BoundedConnection] | None = None,
) -> AsyncIterator[tuple[int, CollectorRegistry]]:
    registry = CollectorRegistry()
    app = make_app(_Probe(), registry)

    async def body(request: Request) -> Response:
        return JSONResponse({"bytes": len(await request.body())})

    async def large(request: Request) -> Response:
        return Response(bytes(PARTS * PART_BYTES))

    async def parts(request: Request) -> Response:
        return StreamingResponse(bytes(PART_BYTES) for _ in range(PARTS))

    app.routes.append(Route("/body", body, methods=["POST"]))
    app.routes.extend([Route("/large", large), Route("/parts", parts)])
    server = HttpServer(app, "127.0.0.1", 0, connection or bounded(MOST, limits_reached(registry)))
    server.start()
    try:
        yield server.port, registry
    finally:
        await asyncio.to_thread(server.stop)


async def _get(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.slow
async def test_idle_connections_do_not_keep_out_a_probe() -> None:
    async with _serving() as (port, registry):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        for path in ("/healthz", "/readyz", "/metrics"):
            assert b" 200 " in await _get(port, path)
        ended = [asyncio.ensure_future(reader.read()) for reader, _ in idle]
        done, _ = await asyncio.wait(ended[: 50 - MOST])
        assert len(done) == 50 - MOST, "the oldest are closed"
        assert (registry.get_sample_value("headrace_limit_reached_total", {"limit": "http.max.connections"}) or 0) >= 46
        for _, writer in idle:
            writer.close()
        await asyncio.wait(ended)


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nt",
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_half_a_request_is_closed_at_its_deadline(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "WAIT_SECONDS", 0.05)
    async with _serving() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(part)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


async def test_the_planted_bug_waits_for_the_head_only(patch: Patch) -> None:
    """A client took any time for the body of its request: 70 of them shut the console."""

    def handle_events(self: BoundedConnection) -> None:
        H11Protocol.handle_events(self)
        if self.cycle is not None and not self.cycle.response_complete:
            self._client_is_done()
            self._set_served(True)

    patch.replace(BoundedConnection, "handle_events", handle_events)
    patch.replace(http_server, "WAIT_SECONDS", 0.05)
    connection = bounded(MOST, limits_reached(CollectorRegistry()))
    async with _serving(connection) as (port, _):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nt")
        await until(lambda: connection.room.served == 1)
        assert connection.room.waiting == 0, "no deadline ends it"
        writer.close()


async def test_a_connection_that_is_kept_alive_is_served_again() -> None:
    async with _serving() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.close()


async def test_a_request_behind_another_is_dropped() -> None:
    """64 connections with thousands of requests each, and no reader, shut the port."""
    async with _serving() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        answers = await _rest(reader)
        assert answers.count(b" 200 ") == 1
        assert b"connection: close" in answers.lower()
        writer.close()


@pytest.mark.parametrize("path", ["/large", "/parts"])
async def test_a_client_that_does_not_read_is_closed_at_its_deadline(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "WAIT_SECONDS", 0.05)
    connection = bounded(MOST, limits_reached(CollectorRegistry()))
    async with _serving(connection) as (port, _):
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, ("127.0.0.1", port))
            await loop.sock_sendall(deaf, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await until(lambda: connection.room.served + connection.room.waiting == 1)
            await until(lambda: connection.room.served + connection.room.waiting == 0)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    found = b""
    try:
        while data := await reader.read(65_536):
            found += data
    except ConnectionResetError:
        pass
    return found


async def test_the_address_with_the_most_makes_room() -> None:
    """The one that waited for longest was closed, also of an address that had no other."""
    async with _serving() as (port, _):
        own = await asyncio.open_connection("127.0.0.1", port)
        idle = [await asyncio.open_connection("127.0.0.1", port, local_addr=(STRANGER, 0)) for _ in range(20)]
        await asyncio.gather(*(_rest(reader) for reader, _ in idle[: 20 - MOST + 1]))
        own[1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b" 200 " in await _rest(own[0])
        for _, writer in (own, *idle):
            writer.close()


def test_a_port_in_use_is_one_line_that_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidError, match=f"cannot listen on 127.0.0.1:{port}: .*; choose another http.port"):
            HttpServer(make_app(_Probe(), CollectorRegistry()), "127.0.0.1", port, object)


def test_a_client_cannot_forge_a_log_line() -> None:
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(OneLineFormatter())
    logger = logging.Logger("headrace.test")
    logger.addHandler(handler)
    forged = "g\n2026-11-22 00:00:00,000 CRITICAL headrace.agent the cluster is lost\r\x1b[2J\u2028x"
    logger.warning("group not loaded: group=%s", forged)
    try:
        raise InvalidError(f"malformed: {forged}")
    except InvalidError:
        logger.exception("request failed: client_id=%s", forged)
    written = lines.getvalue()
    own = [line for line in written.splitlines() if not line.startswith("  ")]
    assert len(own) == 3, "two messages, and Python's line before the traceback"
    assert not any("CRITICAL headrace" in line.split("group=")[0].split("client_id=")[0] for line in own)
    assert "\x1b" not in written
