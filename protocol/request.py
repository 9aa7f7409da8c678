"""The interface between the listener and the handlers: a Request in, buffers out.

Place: the listener makes a Request from a frame; `agent.apis.dispatch` finds its handler; the handler's
Response is sent in the order of the connection's requests.
Invariant: a handler never touches the socket. An exception in a handler never closes another connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from headrace.protocol.long_entities import Did

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a client on TLS without a certificate; also what answers name for one without a principal."""
REQUEST_ELEMENTS_MAX = 10_000
"""The default of request.max.elements."""


class ReplyReservations(Protocol):
    """The memory of replies that were not sent yet."""

    async def reserve(self, size: int, first: int | None = None) -> tuple[int, int]:
        """Return (bytes that are reserved, bytes of records that may be read: of `size` or fewer). `first`: most bytes
        of the first batch, which is read in any case. None: no fewer than `size`. The caller passes what is
        reserved on with its Response, or releases it."""

    def charge(self, size: int) -> None:
        """Count bytes of records that are in use in any case, like reserved ones."""

    def release(self, size: int) -> None:
        """Give reserved bytes back."""


class UnlimitedReplies:
    """Reservations without a limit, for handlers that are called without a listener."""

    async def reserve(self, size: int, first: int | None = None) -> tuple[int, int]:
        """Reserve the memory at once."""
        return size, size

    def charge(self, size: int) -> None:
        """Nothing to count."""

    def release(self, size: int) -> None:
        """Nothing to count."""


_UNLIMITED = UnlimitedReplies()


class RequestSender(Protocol):
    """The sender of a request, as the metrics by client see it (agent/access/quotas/client_traffic.py)."""

    def sent_records(self, records: int) -> None:
        """The request had so many records that passed the checks."""


class UncountedSender:
    """Sender of a request that does not count."""

    def sent_records(self, records: int) -> None:
        """Nothing to count."""


_UNCOUNTED = UncountedSender()


class GivenProducer(NamedTuple):
    """What a connection's last InitProducerId gave out."""

    producer: tuple[int, int]
    """Producer id and epoch."""
    offset: int
    """End of the metadata log at that time, as the agent knew it."""


@dataclass(slots=True, eq=False)
class ClientConnection:
    """The properties of a client's connection that handlers can read and store data in. Compared by identity."""

    connection_id: int
    peer: str
    principal: str | None = None
    """The authenticated principal as type:name; None on PLAINTEXT listeners, which do not authenticate, and before
    SaslAuthenticate."""
    must_authenticate: bool = False
    """It came in on a listener with SASL."""
    is_agent: bool = False
    """It has shown that it knows the cluster's secret."""
    is_by_token: bool = False
    """It authenticated with a delegation token."""
    sends_tokens: bool = False
    """Its frames are tokens of SASL, without a header, and so are the answers: between SaslHandshake 0 and the end of
    the authentication."""
    sasl: Any = None
    """The state of its authentication (agent/access/sasl)."""
    access: Any = None
    """What it may do, as found for its last request (agent/access/authorization)."""
    produce_order: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a Produce request that cannot be appended at once, until its batches are in the buffer."""
    produce_queue: int = 0
    """The number of such requests. Requests after them wait in the queue as well: batches are appended in request
    order.
    """
    produce_unanswered: int = 0
    """Produce requests with acks other than 0 that are in a file and not answered."""
    produce_depth: int = 0
    """The most of them at once, seen lately (agent/produce/flusher.py)."""
    produce_below_depth: int = 0
    """Requests since it had as many."""
    given: GivenProducer | None = None
    """What its last InitProducerId gave out."""
    origin: Any = None
    """How its requests come, as the last Produce found it (agent/produce/last_stored.py); None after InitProducerId."""
    request_elements_max: int = REQUEST_ELEMENTS_MAX
    """Array elements that one request may have in total."""
    replies: ReplyReservations = _UNLIMITED
    """Reservation of memory for a large reply, which a handler makes before it makes it."""
    listener: str = "PLAINTEXT"
    """Name of the listener on which it came in."""
    is_link: bool = False
    """Another agent opened it to forward requests: they are answered in any order."""
    is_forwarded: bool = False
    """The client is connected to another agent, which forwards its requests."""
    when_closed: Callable[[], None] | None = None
    """Called when the client has disconnected."""
    closed: bool = False
    """The client has disconnected: a long poll may end early. Handlers are not cancelled for it."""

    @property
    def is_known(self) -> bool:
        """Whether it has done what its listener asks before it serves."""
        return not self.must_authenticate or self.principal is not None or self.is_agent or self.is_link

    def call_when_closed(self, call: Callable[[], None]) -> None:
        """Call it too when the client has disconnected, before what was to be called already."""
        self.when_closed = call if self.when_closed is None else partial(_both, call, self.when_closed)


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    try:
        first()
    finally:
        second()


@dataclass(slots=True)
class Request:
    """A complete frame with its parsed header."""

    connection: ClientConnection
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: memoryview
    """Read-only bytes after the header, a view into the frame; valid as long as it is referenced.

    A produce frame's memory counts as free again when its handler returns.
    """
    received_at: float
    """Clock.monotonic() when the last byte arrived."""
    entity: Any = None
    """The decoded body, once protocol/typed.py has decoded it."""
    kept_bytes: int = 0
    """What it takes besides its frame until it is answered; its handler says so before it returns."""
    sender: RequestSender = _UNCOUNTED
    """What counts its records."""


Buffers = list[bytes | memoryview]
"""A frame after its 4-byte length, header included, in pieces."""


class Response:
    """A handler's answer: an entity, or encoded bytes (of Produce and Fetch, and of cached and forwarded answers).

    An entity becomes bytes when the listener takes the answer, once. Until then rules and the audit log read and
    replace it.
    """

    __slots__ = ("_buffers", "_write", "entity", "reserved_bytes", "throttle_seconds", "write_in_steps")

    def __init__(
        self,
        buffers: Buffers | None = None,
        reserved_bytes: int = 0,
        *,
        entity: Any = None,
        write: Callable[[Any], Buffers] | None = None,
        write_in_steps: Callable[[Any, Did], Awaitable[Buffers]] | None = None,
    ) -> None:
        """`buffers`: None sends nothing (acks=0), unless `write` makes them of `entity`. `write_in_steps` makes the
        same, and lets other tasks run."""
        self._buffers, self._write, self.write_in_steps = buffers, write, write_in_steps
        self.entity = entity
        """What the answer says; None if only its bytes are known."""
        self.reserved_bytes = reserved_bytes
        """What the handler reserved for it with ClientConnection.replies; the listener's from now on."""
        self.throttle_seconds = 0.0
        """For which the client is throttled by a quota that the handler knows."""

    @property
    def buffers(self) -> Buffers | None:
        """The frame; None sends nothing. Raises what encoding the entity raises."""
        if self._buffers is None and self._write is not None:
            self._buffers = self._write(self.entity)
        return self._buffers

    async def encoded(self, did: Did) -> Buffers | None:
        """Return `buffers`, after encoding a long answer in steps: `did` gets the units of each."""
        if self._buffers is None and self.write_in_steps is not None:
            self._buffers = await self.write_in_steps(self.entity, did)
        return self.buffers


class CloseConnection(Exception):
    """Raised by a handler to close this connection after the previous replies (the protocol has no better answer)."""


class Promise:
    """An Awaitable[Response] that uses a callback and needs no task. A handler that finishes its part at once returns
    it.

    For one waiter, on the handler's event loop. It keeps no reference to the request's body.
    """

    __slots__ = ("_on_answered", "is_answered")

    def __init__(self) -> None:
        self.is_answered = False
        self._on_answered: Callable[[], None] | None = None

    def when_answered(self, call: Callable[[], None]) -> None:
        """Call `call` as soon as `response` is available, which may be at once."""
        if self.is_answered:
            call()
        else:
            self._on_answered = call

    def response(self) -> Response:
        """The response, after it was answered; raises what a handler may raise."""
        raise NotImplementedError

    def answer(self) -> None:
        """The response is available now. Repeated calls have no effect."""
        if not self.is_answered:
            self.is_answered = True
            call, self._on_answered = self._on_answered, None  # break the reference cycle between the two
            if call is not None:
                call()

    def __await__(self) -> Generator[Any, None, Response]:
        if not self.is_answered:
            ready = asyncio.get_running_loop().create_future()
            self.when_answered(lambda: None if ready.done() else ready.set_result(None))
            yield from ready
        return self.response()


RequestHandler = Callable[[Request], Awaitable[Response]]
"""Called in arrival order, from the callback that read the frame: it returns at once, and raises what
awaiting it would raise. A coroutine gets a task, a Promise needs none."""
