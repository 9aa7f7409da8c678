"""uvicorn on a separate thread with a separate event loop, with bounds on its connections.

Place: started after the Kafka listener, stopped after it; agents and console use it. The process keeps its signal
handlers.
Invariant of a connection: a connection waits for its client while a request, its head and its body, is not complete,
and while the client does not read the response. It may do so for WAIT_SECONDS, counted from the start of the wait,
and one of those that wait is closed if there are too many (agent/listener/admission.py): a client that sends
requests at once and reads is always served. A request that comes before the last one is answered is dropped, and the
connection ends after that answer: no client needs more, and thousands of answers that its client does not read would
fill the connection.
Invariant of the server: `start` returns when the port accepts connections. If the thread crashes, Kafka traffic
continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import h11
import uvicorn
from prometheus_client import Counter
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.agent.listener.admission import Newcomer, Newcomers
from headrace.agent.listener.sockets import bound_sockets, why_unbound
from headrace.config.addresses import unmapped
from headrace.storage.errors import InvalidError

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


T = TypeVar("T")
ANSWER_TIMEOUT_SECONDS = 5.0
TICK_SECONDS = 1.0
BACKLOG = 64
"""Connections that are accepted in one turn of the loop, before any of them is judged."""


class _Server(uvicorn.Server):
    """Looks once a second for the time of day, and at once whether to end; uvicorn's looks ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    async def main_loop(self) -> None:
        """Run the loop until `end`."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._stopping.wait()

    def end(self) -> None:
        """End the loop from another thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stopping.set)


class HttpServer:
    """One application at one address."""

    def __init__(self, app: ASGIApp, host: str, port: int, connection: Callable[..., Any]) -> None:
        """`connection` makes the protocol of one connection. InvalidError if the address cannot be bound."""
        try:
            self._sockets = bound_sockets(host, port, BACKLOG)
        except OSError as error:
            raise InvalidError(
                f"{why_unbound(host, port, error)}; choose another http.port, or stop the process that uses it"
            ) from error
        self.port: int = self._sockets[0].getsockname()[1]
        made: Any = connection  # uvicorn's annotation is a class, but it only calls it
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", http=made, ws="none", backlog=BACKLOG
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """Start to serve. The socket listens from the constructor on, so no request is refused meanwhile."""
        self._thread.start()

    def stop(self) -> None:
        """Finish requests in progress and close; blocks for at most a few seconds."""
        self._server.end()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)
        for listening in self._sockets:
            listening.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=self._sockets))


async def ask(loop: asyncio.AbstractEventLoop, question: Coroutine[Any, Any, T]) -> T:
    """Run `question` on the agent's loop and wait for it on this one. TimeoutError if that loop is stuck."""
    future = asyncio.run_coroutine_threadsafe(question, loop)
    async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
        return await asyncio.wrap_future(future)
