"""One HTTP connection with bounds: how many there are, and how long one may take to send a request.

Place: the protocol class that http_server.py gives to uvicorn.
Invariant: a client that sends requests at once is always served. If there are too many connections, the one that
has waited longest for its client is closed, so idle and slow clients cannot keep out a health probe.
"""

from __future__ import annotations

import asyncio

from prometheus_client import Counter
from uvicorn.protocols.http.h11_impl import H11Protocol

LIMIT = "http.max.connections"
HAS_CERTIFICATE = "has_certificate"
"""Entry of a request's state: its client showed a certificate, which TLS has verified."""
REQUEST_SECONDS = 10.0
"""From the connection, or the end of the last response, to the last byte of a request."""


class BoundedConnection(H11Protocol):
    """See `bounded` for its limits."""

    connections_max: int
    limits_reached: Counter
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = self.app_state | {HAS_CERTIFICATE: bool(transport.get_extra_info("peercert"))}
        self._expect_request()
        if len(self.connections) > self.connections_max:
            self.limits_reached.labels(LIMIT).inc()
            waiting = [each for each in self.connections if isinstance(each, BoundedConnection) and each.deadline]
            oldest = min(waiting, key=lambda each: each.deadline, default=self)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_expecting()

    def on_response_complete(self) -> None:
        self._expect_request()
        super().on_response_complete()

    @property
    def deadline(self) -> float:
        """When the client must have sent a request; 0 while one is answered."""
        return 0.0 if self._deadline is None else self._deadline.when()

    def _expect_request(self) -> None:
        self._stop_expecting()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_expecting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def bounded(connections_max: int, limits_reached: Counter) -> type[BoundedConnection]:
    """The class with these limits."""
    return type(
        "BoundedConnectionOfServer",
        (BoundedConnection,),
        {"connections_max": connections_max, "limits_reached": limits_reached},
    )
