"""The seam between the listener and everything behind it: one request in, buffers out.

Place: the listener makes a Request from a frame; `agent.dispatch` finds its handler; the handler's
Response goes back in the order of the connection's requests.
Invariant: a handler never touches the socket. What a handler raises never ends another connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Connection:
    """What handlers may know of, and keep with, a client's connection."""

    connection_id: int
    peer: str
    listener_host: str
    client_software: str = ""
    principal: str | None = None
    """Whom the listener has authenticated, as type:name; None on PLAINTEXT, where nobody is asked."""
    produce_order: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a Produce request that cannot be appended at once, until its batches are in the buffer."""
    produce_queue: int = 0
    """How many such requests there are. Whoever comes behind them queues up too: first come, first appended."""
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


class Promise:
    """An Awaitable[Response] that needs no task: it calls back. What a handler returns that has done its part at once.

    For one waiter, on the loop of the handler. It holds nothing of the request's body.
    """

    __slots__ = ("_on_answered", "is_answered")

    def __init__(self) -> None:
        self.is_answered = False
        self._on_answered: Callable[[], None] | None = None

    def when_answered(self, call: Callable[[], None]) -> None:
        """Have `call` called as soon as `response` may be asked, which may be at once."""
        if self.is_answered:
            call()
        else:
            self._on_answered = call

    def response(self) -> Response:
        """The response, once answered; raises what a handler may raise."""
        raise NotImplementedError

    def answer(self) -> None:
        """The response stands. Again: nothing happens."""
        if not self.is_answered:
            self.is_answered = True
            call, self._on_answered = self._on_answered, None  # the two hold each other: a cycle for the collector
            if call is not None:
                call()

    def __await__(self) -> Generator[Any, None, Response]:
        if not self.is_answered:
            ready = asyncio.get_running_loop().create_future()
            self.when_answered(lambda: None if ready.done() else ready.set_result(None))
            yield from ready
        return self.response()


Handler = Callable[[Request], Awaitable[Response]]
"""Called in arrival order, from the callback that read the frame: it returns at once, and raises what
awaiting it would raise. A coroutine gets a task, a Promise does without."""
