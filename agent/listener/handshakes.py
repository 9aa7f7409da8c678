"""The TLS handshakes of one listener: a connection becomes a KafkaConnection when its handshake is complete.

Place: between the accepted socket (after the header of PROXY protocol, if there is one) and connection.py.
Invariant: a handshake ends within HANDSHAKE_SECONDS, and at most WAITING_MAX of a listener are in progress, so that
clients that begin and go on no further hold a limited amount of memory.
asyncio.sslproto is what `create_server(ssl=...)` uses; it is used directly because each connection gets the newest
certificates, and because a header of PROXY protocol comes before the handshake.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.sslproto import SSLProtocol

from headrace.agent.listener.connection import KafkaConnection
from headrace.agent.listener.host import ConnectionHost, Entrance

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10
WAITING_MAX = 1_000


class Handshakes:
    """For one event loop."""

    def __init__(self, host: ConnectionHost, entrance: Entrance) -> None:
        self._host, self._entrance = host, entrance
        self._waiting = 0

    def protocol(self, client: tuple[str, int] | None = None) -> asyncio.BaseProtocol:
        """For a new connection, encrypted if the listener is. `client`: as KafkaConnection."""
        connection = KafkaConnection(self._host, self._entrance, client)
        security = self._entrance.security
        context = None if security is None else security.context()
        if context is None:
            return connection
        if self._waiting >= WAITING_MAX:
            self._host.metrics.connection_closed("tls_handshake")
            return _Refused()
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._waiting += 1
        done.add_done_callback(self._ended)
        return SSLProtocol(loop, connection, context, done, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS)

    def _ended(self, done: asyncio.Future[None]) -> None:
        self._waiting -= 1
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._host.metrics.connection_closed("tls_handshake")
            logger.info("tls handshake failed: listener=%s reason=%s", self._entrance.name, error)


class _Refused(asyncio.Protocol):
    """Closes its connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
