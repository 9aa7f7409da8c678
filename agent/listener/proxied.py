"""A connection on a listener with PROXY protocol, until its header is complete; then its TLS
handshake begins, or it becomes a KafkaConnection.

Place: created by the server for listeners of proxy.protocol.listeners.
Invariant: no byte is served before the header; a connection without one is closed within HEADER_SECONDS, and at most
WAITING_MAX connections of a listener wait for theirs. Limits by address count the client's address, not the balancer's.
It reads no byte after the header: a TLS handshake must see all bytes that follow.
"""

from __future__ import annotations

import asyncio
import logging

from headrace.agent.listener.handshakes import Handshakes
from headrace.agent.listener.host import ConnectionHost
from headrace.agent.listener.proxy_header import missing_bytes, read_proxy_header
from headrace.storage.errors import InvalidError

logger = logging.getLogger(__name__)

HEADER_SECONDS = 5.0
WAITING_MAX = 1_000


class ProxiedConnection(asyncio.BufferedProtocol):
    """The asyncio protocol of a connection before its header."""

    _transport: asyncio.Transport

    def __init__(self, host: ConnectionHost, handshakes: Handshakes, waiting: set[ProxiedConnection]) -> None:
        """`waiting`: the connections of this listener without a header."""
        self._host, self._handshakes, self._waiting = host, handshakes, waiting
        self._data = b""
        self._part = bytearray()
        self._timer: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._waiting) >= WAITING_MAX:
            self._give_up("too many connections wait for their header")
            return
        self._waiting.add(self)
        self._timer = asyncio.get_running_loop().create_task(self._expire())

    def get_buffer(self, sizehint: int) -> bytearray:
        self._part = bytearray(missing_bytes(self._data))
        return self._part

    def buffer_updated(self, nbytes: int) -> None:
        self._data += self._part[:nbytes]
        try:
            header = read_proxy_header(self._data)
        except InvalidError as error:
            self._give_up(error)
            return
        if header is None:
            return
        self._stop_waiting()
        protocol = self._handshakes.protocol(header.client)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()

    async def _expire(self) -> None:
        await self._host.clock.sleep(HEADER_SECONDS)
        self._timer = None
        self._give_up("no complete header in time")

    def _give_up(self, reason: object) -> None:
        logger.warning("connection refused: peer=%s reason=%s", self._transport.get_extra_info("peername"), reason)
        self._host.metrics.connection_closed("proxy_header")
        self._stop_waiting()
        self._transport.abort()

    def _stop_waiting(self) -> None:
        self._waiting.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
