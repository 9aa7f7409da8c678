"""What an idle connection with TLS takes: asyncio's buffer of 256 KiB for each of them is not among it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.agent.listener.tls_protocol import RECEIVE_BYTES, TlsProtocol
from headrace.config.memory_budget import TLS_CONNECTION_BYTES
from tests.agent.access.certificates import Authority

pytestmark = pytest.mark.requirement("X7")
FIRST, MORE = 100, 400
KIB = 1024
"""The first connections also load code and fill the allocator."""


@dataclass
class Listening:
    """The process, and a way into it."""

    process: subprocess.Popen[str]
    port: int
    context: ssl.SSLContext

    def connect(self, count: int) -> list[ssl.SSLSocket]:
        found = []
        for _ in range(count):
            plain = socket.create_connection(("127.0.0.1", self.port))
            found.append(self.context.wrap_socket(plain, server_hostname="127.0.0.1"))
        return found

    def memory(self, connections: int) -> tuple[int, int]:
        """(resident bytes, counted bytes) once so many have completed their handshake, as the listener sees it."""
        for _ in range(6_000):
            resident, counted = self._memory()
            if counted == connections * TLS_CONNECTION_BYTES:
                return resident, counted
            time.sleep(0.01)
        raise AssertionError(f"counted {counted} bytes for {connections} connections")

    def _memory(self) -> tuple[int, int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        resident, counted = self.process.stdout.readline().split()
        return int(resident), int(counted)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    authority = Authority(tmp_path)
    command = [sys.executable, "-m", "tests.agent.listener.tls_listener", str(authority.issue("broker"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield Listening(process, port, ssl.create_default_context(cafile=str(authority.path)))
        assert process.stdin is not None
        process.stdin.close()


def test_the_metric_says_what_idle_connections_take(listening: Listening) -> None:
    """2,400 took 696 MiB, and the metric said 18.8."""
    opened = listening.connect(FIRST)
    before = listening.memory(FIRST)
    opened += listening.connect(MORE)
    after = listening.memory(FIRST + MORE)
    grown, counted = after[0] - before[0], after[1] - before[1]
    assert grown / MORE <= 64 * KIB
    assert abs(grown - counted) <= 0.2 * grown, f"{grown / MORE / KIB:.1f} KiB each"
    for connection in opened:
        connection.close()


async def test_asyncio_still_takes_its_buffer_from_where_it_is_replaced() -> None:
    """Fails if a Python version changes SSLProtocol.max_size, or where it keeps and uses its buffer."""
    assert SSLProtocol.max_size == RECEIVE_BYTES
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    asyncios = SSLProtocol(asyncio.get_running_loop(), asyncio.Protocol(), context, None, server_side=True)
    assert len(asyncios._ssl_buffer) == RECEIVE_BYTES
    first, second = (TlsProtocol(asyncio.Protocol(), context, 10, lambda: None) for _ in range(2))
    assert [len(each._ssl_buffer) for each in (first, second)] == [0, 0]
    assert first.get_buffer(-1) is second.get_buffer(-1), "one for all"
    assert first.get_buffer(-1) is first._ssl_buffer_view
    assert (first.max_size, len(first.get_buffer(-1))) == (RECEIVE_BYTES, RECEIVE_BYTES)
    first.get_buffer(-1)[:3] = b"abc"
    first.buffer_updated(3)
    assert first._incoming.read() == b"abc"
    for each in (asyncios, first, second):
        transport = each._app_transport
        assert transport is not None
        transport._closed = True
