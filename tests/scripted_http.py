"""An HTTP server on loopback that does what a test's script says, one step per request.

Fault model: everything a step does. It may answer early, late, short or not at all, and reset the
connection before, amid or after the body. Requests are recorded as they came, whole or cut.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Self

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass
class Exchange:
    """One request, and the means to answer it well or badly."""

    method: str
    target: str
    headers: dict[str, str]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    body: bytes = b""
    over: bool = False

    async def read_body(self, limit: int | None = None) -> bytes:
        """The body, or its first `limit` bytes; the client going away in between leaves it short."""
        length = int(self.headers.get("content-length", "0"))
        wanted = length if limit is None else min(limit, length)
        while len(self.body) < wanted:
            piece = await self.reader.read(wanted - len(self.body))
            if not piece:
                break
            self.body += piece
        return self.body

    async def answer(
        self, status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None, send: int | None = None
    ) -> None:
        """Announce all of `body`, and send all of it or only its first `send` bytes."""
        lines = {"Content-Length": str(len(body)), "ETag": '"scripted"', **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        content = b"" if self.method == "HEAD" else body[:send]
        self.writer.write(f"HTTP/1.1 {status} Scripted\r\n{head}\r\n".encode() + content)
        await self.writer.drain()

    async def refuse(self, status: int, code: str) -> None:
        """Read the whole body, then answer with S3's error document."""
        await self.read_body()
        await self.answer(status, f"<Error><Code>{code}</Code><Message>scripted</Message></Error>".encode())

    async def accept(self) -> None:
        """Do the same as S3 does, naming the checksum that came with the body."""
        await self.read_body()
        name = "x-amz-checksum-crc32c"
        await self.answer(headers={name: self.headers[name]} if name in self.headers else {})

    def reset(self) -> None:
        """Drop the connection so that the client sees a reset, not an end."""
        connection: socket.socket = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.close()

    def close(self) -> None:
        self.writer.close()
        self.over = True


Step = Callable[[Exchange], Awaitable[None]]


def refusing(status: int, code: str) -> Step:
    """A step that reads the body and then refuses."""
    return partial(Exchange.refuse, status=status, code=code)


async def reset_before_body(exchange: Exchange) -> None:
    exchange.reset()


async def reset_amid_body(exchange: Exchange) -> None:
    await exchange.read_body(limit=700_000)
    exchange.reset()


async def reset_after_body(exchange: Exchange) -> None:
    await exchange.read_body()
    exchange.reset()


async def close_after_body(exchange: Exchange) -> None:
    await exchange.read_body()
    exchange.close()


async def never_answer(exchange: Exchange) -> None:
    await exchange.read_body()
    await asyncio.Event().wait()


@dataclass
class ScriptedServer:
    """`async with ScriptedServer(steps) as server`: requests meet the steps in order, and `accept` after the last."""

    steps: list[Step] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    url: str = ""

    async def __aenter__(self) -> Self:
        self.reached = asyncio.Event()  # set by the first request
        self._connections: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def bodies(self) -> list[bytes]:
        """Return what each request carried, in the order of their beginning."""
        return [exchange.body for exchange in self.exchanges]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while exchange := await self._next_exchange(reader, writer):
                self.exchanges.append(exchange)
                self.reached.set()
                step = self.steps.pop(0) if self.steps else Exchange.accept
                await step(exchange)
                if exchange.over:
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client went away, or the server ends: the exchange stays on record as it is
        finally:
            writer.close()
            self._connections.discard(task)

    @staticmethod
    async def _next_exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return None
        request, *lines = head.rstrip().split("\r\n")
        method, target, _ = request.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Exchange(method, target, headers, reader, writer)
