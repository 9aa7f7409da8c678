"""Requests of any API by the names of its fields, and a connection that sends them one after another."""

from __future__ import annotations

import asyncio
import struct
from types import TracebackType
from typing import Any

from headrace.protocol.typed import schema

PATIENCE_SECONDS = 60.0


def part(api_key: int, version: int, name: str, /, **fields: Any) -> Any:
    """An element of an array of the request."""
    return getattr(schema(api_key, version)._request_module, name)(**fields)


def frame(api_key: int, version: int, /, client_id: str = "hostile", **fields: Any) -> bytes:
    """A whole request frame."""
    found = schema(api_key, version)
    return framed_body(api_key, version, bytes(found.encode_request(found.request_type(**fields))), client_id)


def framed_body(api_key: int, version: int, body: bytes, client_id: str) -> bytes:
    """A request frame with any body."""
    name = client_id.encode()
    head = struct.pack(">hhih", api_key, version, 1, len(name)) + name
    data = head + (b"\0" if schema(api_key, version).flexible else b"") + body
    return struct.pack(">i", len(data)) + data


class Asking:
    """One connection, opened again when the agent has closed it."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.closed = 0
        """How often it was closed instead of an answer."""

    async def __aenter__(self) -> Asking:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._abort()

    async def ask(self, data: bytes, seconds: float = PATIENCE_SECONDS) -> bytes:
        """The answer to the frame `data`, without its length; empty if there is none."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(*self._address, limit=1 << 26)
            reader, writer = self._streams
            async with asyncio.timeout(seconds):
                writer.write(data)
                await writer.drain()
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                return await reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            self.closed += 1
            self._abort()
            return b""

    def _abort(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
