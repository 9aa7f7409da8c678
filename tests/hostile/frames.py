"""Request frames as an attacker makes them: any header, any body, any declared length."""

from __future__ import annotations

import asyncio
import struct

METADATA, JOIN_GROUP, FETCH, PRODUCE = 3, 11, 1, 0


def header(api_key: int, version: int, correlation_id: int = 1, *, flexible: bool = False) -> bytes:
    """A request header with the client id `hostile`."""
    fixed = struct.pack(">hhih7s", api_key, version, correlation_id, 7, b"hostile")
    return fixed + b"\0" if flexible else fixed


def framed(data: bytes) -> bytes:
    """`data` with its length before it."""
    return struct.pack(">i", len(data)) + data


def request(api_key: int, version: int, body: bytes, *, correlation_id: int = 1, flexible: bool = False) -> bytes:
    """A whole request frame."""
    return framed(header(api_key, version, correlation_id, flexible=flexible) + body)


def text(value: str) -> bytes:
    """A string with its 16-bit length."""
    data = value.encode()
    return struct.pack(">h", len(data)) + data


async def ask(host: str, port: int, frame: bytes, seconds: float = 30.0) -> bytes:
    """The reply to one request on a separate connection; empty if the agent closes it or does not answer in time."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 26)
    try:
        writer.write(frame)
        await writer.drain()
        async with asyncio.timeout(seconds):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            return await reader.readexactly(size)
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        return b""
    finally:
        writer.close()
