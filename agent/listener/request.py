"""The seam between the listener and everything behind it: one request in, buffers out.

Place: the listener makes a Request from a frame; `agent.dispatch` finds its handler; the handler's
Response goes back in the order of the connection's requests.
Invariant: a handler never touches the socket. What a handler raises never ends another connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Connection:
    """What handlers may know of, and keep with, a client's connection."""

    connection_id: int
    peer: str
    listener_host: str
    client_software: str = ""
    produce_order: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from receiving a Produce request until its batches are in the buffer: first come, first appended."""
    closed: bool = False
    """The client is gone: a long poll may end early. Handlers are not cancelled for it."""


@dataclass(slots=True)
class Request:
    """A whole frame with its header read."""

    connection: Connection
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: memoryview
    """Read-only bytes after the header, a window into the frame; stays valid as long as somebody references it.

    A produce frame's memory counts as free again when its handler returns.
    """
    received_at: float
    """Clock.monotonic() when the last byte arrived."""


@dataclass(slots=True)
class Response:
    """`buffers` is the frame after its 4-byte length, header included; None sends nothing (acks=0)."""

    buffers: list[bytes | memoryview] | None


class CloseConnection(Exception):
    """Raised by a handler: end this connection after the replies before it (the protocol has no better answer)."""


Handler = Callable[[Request], Awaitable[Response]]
"""Started in arrival order; may be awaited side by side with the connection's later requests."""
