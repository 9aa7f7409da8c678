"""One HTTP connection with bounds: how many there are, and how long one may wait for its client.

Place: the protocol class that http_server.py gives to uvicorn; agents and console use it.
Invariant: a connection waits for its client while a request, its head and its body, is not complete, and while the
client does not read the response. It may do so for WAIT_SECONDS, counted from the start of the wait, and one of those
that wait is closed if there are too many (agent/listener/newcomers.py): a client that sends requests at once and reads
is always served. A request that comes before the last one is answered is dropped, and the connection ends after that
answer: no client needs more, and thousands of answers that its client does not read would fill the connection.
"""

from __future__ import annotations

import asyncio

import h11
from prometheus_client import Counter
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.agent.listener.newcomers import Newcomer, Newcomers
from headrace.config.addresses import unmapped

LIMIT = "http.max.connections"
HAS_CERTIFICATE = "has_certificate"
"""Entry of a request's state: its client showed a certificate, which TLS has verified."""
WAIT_SECONDS = 10.0
"""Limit in seconds for the rest of a request, from the connection or the end of the last response on; or for room to
write.
"""


class HttpRoom:
    """The connections of one HTTP listener; `most` of them may be open."""

    def __init__(self, most: int, limits_reached: Counter) -> None:
        self.most = most
        self.served = 0
        """Connections that wait for this process, not for their client."""
        self._limits_reached = limits_reached
        self._waiting = Newcomers(lambda: self.most - self.served, WAIT_SECONDS)

    def wait(self, transport: asyncio.Transport) -> HttpWait:
        """The connection waits for its client from now on. It is closed when its time is over, or for another."""
        return HttpWait(self, self._waiting, transport)

    @property
    def waiting(self) -> int:
        """Connections that wait for their client."""
        return len(self._waiting)

    def displaced(self) -> None:
        """One was closed because there were too many."""
        self._limits_reached.labels(LIMIT).inc()


class HttpWait:
    """One wait of a connection for its client."""

    def __init__(self, room: HttpRoom, waiting: Newcomers, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        self._room, self._transport = room, transport
        self._timer = loop.call_later(WAIT_SECONDS, transport.abort)
        peer = transport.get_extra_info("peername")
        self._newcomer: Newcomer = waiting.enter(unmapped(str(peer[0])) if peer else "", loop.time(), self._close)

    def end(self) -> None:
        """The client has done its part, or the connection ended."""
        self._timer.cancel()
        self._newcomer.leave()

    def _close(self, for_others: bool) -> None:
        self._timer.cancel()
        self._room.displaced()
        self._transport.abort()


class BoundedConnection(H11Protocol):
    """See `bounded` for its limits."""

    room: HttpRoom
    wait: HttpWait | None = None
    """The present one, if it waits for its client; a handshake's is taken over."""
    _is_served = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = self.app_state | {HAS_CERTIFICATE: bool(transport.get_extra_info("peercert"))}
        self._wait_for_client()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client_is_done()
        self._set_served(False)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is None or self.cycle.response_complete or self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            return
        if self.conn.trailing_data[0]:
            self._refuse_pipelining()
        if not self.flow.write_paused:
            self._client_is_done()
            self._set_served(True)

    def on_response_complete(self) -> None:
        self._wait_for_client()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_client()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.cycle is not None and not self.cycle.response_complete and self.conn.their_state is not h11.SEND_BODY:
            self._client_is_done()
            self._set_served(True)

    def _refuse_pipelining(self) -> None:
        self.cycle.keep_alive = False
        if not self.cycle.response_started:
            self.cycle.default_headers = [*self.cycle.default_headers, CLOSE_HEADER]

    def _wait_for_client(self) -> None:
        self._client_is_done()
        self._set_served(False)
        self.wait = self.room.wait(self.transport)

    def _client_is_done(self) -> None:
        if self.wait is not None:
            self.wait.end()
            self.wait = None

    def _set_served(self, is_served: bool) -> None:
        self.room.served += is_served - self._is_served
        self._is_served = is_served


def bounded(connections_max: int, limits_reached: Counter) -> type[BoundedConnection]:
    """The class with these limits."""
    return type("BoundedConnectionOfServer", (BoundedConnection,), {"room": HttpRoom(connections_max, limits_reached)})
