"""The TLS handshakes of the HTTP listener.

Place: what uvicorn calls for each connection, in place of the class of http_connection.py.
Invariant: each connection gets the newest certificates, and open ones are not touched. A connection waits for its
client until its handshake is complete, among the others that do: http_connection.py has their limits.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from headrace.agent.access.tls import ReloadedContext
from headrace.agent.listener.tls_protocol import TlsProtocol
from headrace.cli.process.http_connection import BoundedConnection, HttpWait

logger = logging.getLogger(__name__)

_BEYOND_SECONDS = 60
"""asyncio's own limit of a handshake, behind that of a wait."""


class HttpHandshakes:
    """Connections in their handshake, for one event loop."""

    def __init__(self, connection: type[BoundedConnection], context: ReloadedContext) -> None:
        self._connection, self._context = connection, context

    def __call__(self, **given: Any) -> asyncio.BaseProtocol:
        """Make the protocol of a new connection; `given` is uvicorn's."""
        return _Handshake(self._connection, self._context, given)


class _Handshake(asyncio.Protocol):
    """A connection that was just accepted: TLS allocates nothing for it before it is among those that wait."""

    def __init__(self, connection: type[BoundedConnection], context: ReloadedContext, given: dict[str, Any]) -> None:
        self._connection, self._context, self._given = connection, context, given

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        wait: HttpWait = self._connection.room.wait(transport)
        if transport.is_closing():
            return
        inner = self._connection(**self._given)
        inner.wait = wait
        encrypted = TlsProtocol(inner, self._context.current(), _BEYOND_SECONDS, wait.end)
        encrypted.handshake.add_done_callback(_log_failure)
        transport.set_protocol(encrypted)
        encrypted.connection_made(transport)


def _log_failure(done: asyncio.Future[None]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        logger.debug("tls handshake failed: listener=http reason=%s", error)
