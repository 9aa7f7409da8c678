"""A TCP proxy that breaks what goes through it, as networks do.

Fault model, per window of time:
  delay      every chunk waits a while
  mute       requests pass, replies are swallowed, then the connection is reset: stored, but the sender does not know
  half_open  connections stay open and transfer nothing in either direction; neither side notices
  cut        the next chunk of each connection is cut in the middle of a frame and both sides are reset
  slow_down  each HTTP request is answered 503, as S3 and Azure do under load, and its connection is closed
  deny_puts  each PUT is answered 403 AccessDenied, as by rights that were taken away; all else passes
  alter      in half of the chunks of S3's answers to ranged GETs, some bytes of the body are others
and at once:
  reset      every connection is reset (RST)
Invariant: bytes that arrive are the sender's, in order. Only `alter` corrupts them, as a fault between a store's disk
and its socket does: TCP has checksums. New connections are refused while there is no target.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import suppress

CHUNK_BYTES = 64 * 1024
DELAY_MAX_S = 0.4
_METHODS = (b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE ")
_REASON = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_ANSWER = b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_REFUSED = {
    "slow_down": (_METHODS, _ANSWER % (b"503 Slow Down\r\nx-ms-error-code: ServerBusy", len(_REASON), _REASON)),
    "deny_puts": ((b"PUT ", b"POST /upload/"), _ANSWER % (b"403 Forbidden", len(_DENIED), _DENIED)),
}
"""Faults that answer instead of the server: the requests, and the answer."""
_HEAD, _PARTIAL, _BODY = b"HTTP/1.1 ", b"HTTP/1.1 206 ", b"\r\n\r\n"
ALTERED_BYTES = (1, 1, 1, 2, 5)
"""How many bytes of a chunk are altered, at the most: one of these."""


class Link:
    """One client's connection and ours to the server behind it, which listens on `target`."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter, target: int) -> None:
        self.target = target
        self.sides = (client, server)
        self.is_half_open = False
        self.is_muted = False
        self.is_refused = False
        self.is_partial = False
        """Whether the answer under way is a part of an object."""

    def reset(self) -> None:
        """End both sides with RST."""
        for writer in self.sides:
            with suppress(OSError):
                sock: socket.socket = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class FaultProxy:
    """Listens on 127.0.0.1; `target` is the port of 127.0.0.1 that it forwards to, 0 for none."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._links: set[Link] = set()
        self._fault = ""
        self._closing = asyncio.Event()
        self.port = 0
        self.target = 0
        self.accepted = 0
        """Connections so far."""

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, reset all connections, and return when none is left."""
        self._server.close()
        self._closing.set()
        while self._links:
            self.reset()
            await asyncio.sleep(0.01)

    def reset(self) -> None:
        """Reset every connection."""
        for link in list(self._links):
            link.reset()

    def open_to(self, target: int) -> int:
        """Return how many connections are open to this port; a half-open one is here until the end."""
        return sum(link.target == target and not link.is_half_open for link in self._links)

    @property
    def open(self) -> int:
        """How many connections are open."""
        return len(self._links)

    @property
    def has_swallowed(self) -> bool:
        """Whether a connection is half open."""
        return any(link.is_half_open for link in self._links)

    @property
    def fault(self) -> str:
        """The fault that reigns until it is changed; empty for none."""
        return self._fault

    @fault.setter
    def fault(self, name: str) -> None:
        self._fault = name

    async def strike(self, fault: str, seconds: float) -> None:
        """Any of the faults above."""
        if fault == "reset":
            self.reset()
        else:
            await self.window(fault, seconds)

    async def window(self, fault: str, seconds: float) -> None:
        """Let one of the faults that last reign for a while."""
        self._fault = fault
        if fault == "half_open":
            for link in self._links:
                link.is_half_open = True
        await asyncio.sleep(seconds)
        self._fault = ""
        for link in list(self._links):
            if link.is_muted:
                link.reset()

    async def _accept(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        target = self.target
        try:
            server_in, server_out = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            client_out.transport.abort()
            return
        link = Link(client_out, server_out, target)
        self.accepted += 1
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(link, client_in, server_out, is_reply=False))
                pumps.create_task(self._pump(link, server_in, client_out, is_reply=True))
        finally:
            self._links.discard(link)

    async def _pump(
        self, link: Link, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_reply: bool
    ) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                if self._fault == "half_open":
                    link.is_half_open = True
                if self._fault == "mute" and is_reply:
                    link.is_muted = True
                methods, answer = _REFUSED.get(self._fault, ((), b""))
                if methods and not is_reply and data.startswith(methods) and not link.is_refused:
                    link.is_refused = True
                    link.sides[0].write(answer)
                if link.is_refused:
                    continue  # the rest of the request; the client closes
                if is_reply:
                    data = self._altered(link, data)
                if self._fault == "delay":
                    await asyncio.sleep(self._rng.random() * DELAY_MAX_S)
                if link.is_half_open or (link.is_muted and is_reply):
                    continue
                if self._fault == "cut":
                    sink.write(data[: self._rng.randrange(len(data))])
                    await sink.drain()
                    link.reset()
                    return
                sink.write(data)
                await sink.drain()
            if link.is_half_open:
                await self._closing.wait()  # neither side hears that the other has gone
        for side in link.sides:
            side.close()

    def _altered(self, link: Link, data: bytes) -> bytes:
        """The chunk of a reply as it goes on."""
        start = 0
        if data.startswith(_HEAD):
            link.is_partial = data.startswith(_PARTIAL)
            start = data.find(_BODY) + len(_BODY)
        if self._fault != "alter" or not link.is_partial or start >= len(data) or self._rng.random() < 0.5:
            return data
        changed = bytearray(data)
        for _ in range(self._rng.choice(ALTERED_BYTES)):
            changed[self._rng.randrange(start, len(data))] ^= self._rng.randrange(1, 256)
        return bytes(changed)
