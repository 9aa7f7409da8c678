"""A connection from accept until it is a KafkaConnection: admission, then PROXY header, then TLS handshake.

Place: what the server makes of each accepted socket.
Invariant: admission comes first, before a byte is read; only behind a balancer it follows the header, which names the
client, and the connection is a newcomer meanwhile. Limits by address count the client's address, not the balancer's. No
byte is served before a complete header, and none after it is read here: a TLS handshake must see all bytes that follow.
TLS allocates nothing before the client's first bytes: a TLS client speaks first, and a silent one costs a socket only.
"""

from __future__ import annotations

import asyncio
import logging
import ssl

from headrace.agent.listener.accepted import AUTHENTICATION, HANDSHAKE, HEADER, AcceptedSocket
from headrace.agent.listener.connection import KafkaConnection
from headrace.agent.listener.host import ConnectionHost, Entrance
from headrace.agent.listener.proxy_header import missing_bytes, read_proxy_header
from headrace.agent.listener.tls_protocol import TlsProtocol, receive_buffer
from headrace.config.addresses import unmapped
from headrace.storage.errors import InvalidError

_SPARE_SECONDS = 60
"""asyncio gives a TLS handshake this much longer than the limit on new connections, which therefore applies first."""
_NOWHERE = ("", 0)


class ArrivingConnection(asyncio.BufferedProtocol):
    """The asyncio protocol of a connection that was just accepted."""

    _transport: asyncio.Transport
    _accepted: AcceptedSocket

    def __init__(self, host: ConnectionHost, entrance: Entrance, *, proxy_protocol: bool) -> None:
        """`proxy_protocol`: a header comes first."""
        self._host, self._entrance, self._is_proxied = host, entrance, proxy_protocol
        self._data = b""
        self._part = bytearray()
        self._context: ssl.SSLContext | None = None
        """Set from admission to the first bytes of a TLS handshake."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sender = transport.get_extra_info("peername") or _NOWHERE  # none: it has disconnected already
        self._accepted = AcceptedSocket(
            self._host, self._entrance, transport, (unmapped(str(sender[0])), int(sender[1]))
        )
        if self._is_proxied:
            self._accepted.wait(HEADER)
        elif self._accepted.admit():
            self._serve()

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        if self._context is not None:
            return receive_buffer()
        self._part = bytearray(missing_bytes(self._data))
        return self._part

    def buffer_updated(self, nbytes: int) -> None:
        if self._context is not None:
            self._begin_handshake(self._context, nbytes)
            return
        self._data += self._part[:nbytes]
        try:
            header = read_proxy_header(self._data)
        except InvalidError as error:
            self._accepted.close(HEADER, detail=error)
            return
        if header is None:
            return
        if header.client is not None:
            self._accepted.name(header.client)
        if self._accepted.admit():
            self._serve()

    def connection_lost(self, exc: Exception | None) -> None:
        self._accepted.ended()

    def _serve(self) -> None:
        """Hand the connection over to the protocol that reads on; with TLS, only from its first bytes on."""
        accepted, security = self._accepted, self._entrance.security
        self._context = None if security is None else security.context()
        must_authenticate = security is not None and security.must_authenticate
        if self._context is not None or must_authenticate:
            if not accepted.wait(AUTHENTICATION if self._context is None else HANDSHAKE):
                return
        else:
            accepted.established()
        if self._context is None:
            connection = KafkaConnection(self._host, self._entrance, accepted)
            self._transport.set_protocol(connection)
            connection.connection_made(self._transport)

    def _begin_handshake(self, context: ssl.SSLContext, nbytes: int) -> None:
        """Hand the connection over to TLS, with the first `nbytes` of the handshake in the shared receive buffer."""
        accepted = self._accepted
        accepted.handshake_begins()
        connection = KafkaConnection(self._host, self._entrance, accepted)
        allowed = int(self._entrance.newcomers.seconds) + _SPARE_SECONDS
        encrypted = TlsProtocol(connection, context, allowed, lambda: _lost(accepted, connection))
        encrypted.handshake.add_done_callback(self._shook_hands)
        self._transport.set_protocol(encrypted)
        encrypted.connection_made(self._transport)
        encrypted.buffer_updated(nbytes)

    def _shook_hands(self, handshake: asyncio.Future[None]) -> None:
        """Report a failure."""
        error = None if handshake.cancelled() else handshake.exception()
        if error is not None:
            reason = str(error) or "the client closed the connection"
            self._accepted.close(HANDSHAKE, detail=reason, level=logging.INFO)


def _lost(accepted: AcceptedSocket, connection: KafkaConnection) -> None:
    """The socket is closed: maybe before the handshake, so that `connection` never began."""
    accepted.ended()
    connection.release()
