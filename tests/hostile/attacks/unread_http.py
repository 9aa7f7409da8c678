"""64 HTTP connections that pipeline requests for /metrics and read nothing, then 70 bodies that never end."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.http_requests import probes
from tests.hostile.second_listener import waits

PIPELINED, REQUESTS, BODIES, PROBES = 64, 200, 70, 10
_GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
_POST = b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nt"


async def attack(target: AttackedAgent) -> str:
    """Health probes meanwhile."""
    found = {}
    for name, count, data in (("pipelined", PIPELINED, _GET * REQUESTS), ("half bodies", BODIES, _POST)):
        opened = [await _deaf(target.http, data) for _ in range(count)]
        found[name] = waits(await probes(target.http, PROBES))
        for connection in opened:
            connection.close()
    return "; ".join(f"{name}: {told}" for name, told in found.items())


async def _deaf(address: tuple[str, int], data: bytes) -> socket.socket:
    """A connection that sends what is taken in a tenth of a second."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, TimeoutError):
        await loop.sock_connect(connection, address)
        async with asyncio.timeout(0.1):
            await loop.sock_sendall(connection, data)
    return connection
