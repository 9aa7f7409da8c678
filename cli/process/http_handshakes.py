"""The TLS handshakes of the HTTP listener.

Place: what uvicorn calls for each connection, in place of the class of http_connection.py.
Invariant: each connection gets the newest certificates, and open ones are not touched. At most as many connections as
may be open are in their handshake; of more the oldest is closed, so that a probe is always served.
asyncio.sslproto: as in agent/listener/handshakes.py.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any

from headrace.agent.security.tls import ReloadedContext
from headrace.cli.process.http_connection import LIMIT, BoundedConnection

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10


class HttpHandshakes:
    """For one event loop."""

    def __init__(self, connection: type[BoundedConnection], context: ReloadedContext) -> None:
        self._connection, self._context = connection, context
        self._waiting: dict[_Handshake, None] = {}

    def __call__(self, **given: Any) -> asyncio.BaseProtocol:
        """For a new connection; `given` is uvicorn's."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        inner, context = self._connection(**given), self._context.current()
        made = _Handshake(loop, inner, context, done, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS)
        made.on_begin = lambda: self._began(made)
        done.add_done_callback(lambda done: self._ended(made, done))
        return made

    def _began(self, made: _Handshake) -> None:
        self._waiting[made] = None
        if len(self._waiting) > self._connection.connections_max:
            self._connection.limits_reached.labels(LIMIT).inc()
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.abort()

    def _ended(self, made: _Handshake, done: asyncio.Future[None]) -> None:
        self._waiting.pop(made, None)
        error = None if done.cancelled() else done.exception()
        if error is not None:
            logger.debug("tls handshake failed: listener=http reason=%s", error)


class _Handshake(SSLProtocol):
    """A connection that can be closed before its handshake is complete."""

    on_begin: Callable[[], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.abort = transport.abort
        super().connection_made(transport)
        self.on_begin()
