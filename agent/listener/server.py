"""The Kafka listener: accepts connections at one or more addresses, makes each a KafkaConnection, drains them.

Place: the agent's entry point for clients; passes requests to `agent.apis.dispatch`. ArrivingConnection is a
connection from accept until it is a KafkaConnection: admission, then PROXY header, then TLS handshake
(proxy_header.py, tls_protocol.py).
Invariant: no client can stop the listener or close another client's connection, once that client is known
(admission.py). After `drain` no request was started, and requests in progress had the grace period. Admission comes
first, before a byte is read; only behind a balancer it follows the header, which names the client, and the
connection is a newcomer meanwhile. Limits by address count the client's address, not the balancer's. No byte is
served before a complete header, and none after it is read here: a TLS handshake must see all bytes that follow. TLS
allocates nothing before the client's first bytes: a TLS client speaks first, and a silent one costs a socket only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry

from headrace.agent.access.listener_security import ListenerSecurity
from headrace.agent.access.quotas.client_traffic import ClientTraffic
from headrace.agent.access.quotas.enforcement import QuotaEnforcer
from headrace.agent.listener.connection import KafkaConnection
from headrace.agent.listener.connection_limits import AUTHENTICATION, HANDSHAKE, HEADER, AcceptedSocket
from headrace.agent.listener.host import ConnectionHost, Entrance, Limits, ProduceBytes, RefusedCertificate, not_noted
from headrace.agent.listener.metrics import ListenerMetrics
from headrace.agent.listener.proxy_header import missing_bytes, read_proxy_header
from headrace.agent.listener.sockets import ACCEPTED_AT_ONCE, BACKLOG, bound_sockets, why_unbound
from headrace.agent.listener.tls_protocol import TlsProtocol, receive_buffer
from headrace.config.addresses import unmapped
from headrace.protocol.request import RequestHandler
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError
from headrace.storage.supervision import Supervisor

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


logger = logging.getLogger(__name__)

_SWEEP_SECONDS = 1.0
"""Interval of the search for connections that keep memory while others wait for it."""
_EXPIRY_SECONDS = 5.0
"""Interval of the search for idle and stalled connections."""


class KafkaListener:
    """The listening sockets of a process, with common limits.

    `handle` gets every request; see protocol/request.py for its contract.
    """

    def __init__(
        self,
        handle: RequestHandler,
        limits: Limits,
        clock: Clock,
        registry: CollectorRegistry = REGISTRY,
        max_connections: Callable[[], int] | None = None,
        supervisor: Supervisor | None = None,
        refused_certificate: RefusedCertificate = not_noted,
    ) -> None:
        """`max_connections` overrides the limit, as in ConnectionHost. `supervisor`: the process's; None: a separate
        one. `refused_certificate` is called for each client with a certificate that no rule of
        ssl.principal.mapping.rules matches."""
        self._supervisor = supervisor or Supervisor(clock)
        metrics = ListenerMetrics(registry)
        self._host = ConnectionHost(handle, limits, clock, metrics, max_connections, refused_certificate)
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def produce_bytes(self) -> ProduceBytes:
        """What the listener sees of Produce requests before they are whole."""
        return self._host.produce_bytes

    def memory_in_use(self) -> dict[str, Callable[[], float]]:
        """Bytes by part of the memory budget."""
        host = self._host
        return {
            "produce_requests": lambda: host.budget.in_use_bytes,
            "requests": lambda: host.requests.in_use_bytes,
            "replies": lambda: host.replies.in_use_bytes,
            "connections": lambda: host.connection_bytes,
        }

    def count_clients(self, traffic: ClientTraffic) -> None:
        """Count the requests and answers of each client from now on."""
        self._host.traffic = traffic

    def limit_clients(self, quotas: QuotaEnforcer | None) -> None:
        """Enforce these quotas on requests from now on; None: there are none."""
        self._host.quotas = quotas

    def limit_connections(self, is_in_quota: Callable[[str], bool]) -> None:
        """Ask before a client's address gets one more connection."""
        self._host.admission.is_in_quota = is_in_quota

    async def start(
        self,
        host: str,
        port: int,
        name: str = "PLAINTEXT",
        *,
        for_agents: bool = False,
        proxy_protocol: bool = False,
        security: ListenerSecurity | None = None,
    ) -> int:
        """Listen, also at one more address; port 0 picks a free one. Returns the port. InvalidError if the address
        cannot be bound.

        `name`: the listener's, which handlers see. `for_agents`: other agents connect to it.
        `proxy_protocol`: connections begin with a header that names the client. `security`: TLS and SASL, if any.
        """
        loop = asyncio.get_running_loop()
        entrance = self._host.entrance(name, security, for_agents=for_agents)
        make = partial(ArrivingConnection, self._host, entrance, proxy_protocol=proxy_protocol)
        try:
            sockets = await asyncio.to_thread(bound_sockets, host, port, BACKLOG)
        except OSError as error:
            raise InvalidError(
                f"{why_unbound(host, port, error)}; choose another port in listeners, or stop the process that uses it"
            ) from error
        bound: int = sockets[0].getsockname()[1]
        for each in sockets:
            self._servers.append(await loop.create_server(make, sock=each, backlog=ACCEPTED_AT_ONCE))
            with socket.socket(fileno=os.dup(each.fileno())) as same:
                same.listen(BACKLOG)  # asyncio has one number for the kernel's queue and for a turn
        if self._sweeper is None:
            self._sweeper = self._supervisor.keep("idle connections", self._sweep)
        if security is not None and security.protocol.has_tls:
            self._host.metrics.certificate(name, security.certificate_expires_at)
        logger.info("kafka listener started: name=%s host=%s port=%d", name, host, bound)
        return bound

    def suspend(self, suspended: bool) -> None:
        """Close all connections and accept none, until called with False: this agent has nothing to say to clients."""
        self._host.suspended = suspended
        if suspended:
            self._end_arriving()
            for connection in list(self._host.connections):
                connection.abort()

    async def drain(self, grace_seconds: float) -> None:
        """Stop accepting and reading, answer requests in progress, close. After the grace period, close the rest."""
        if self._sweeper is None:
            return
        for server in self._servers:
            server.close()
        self._sweeper.cancel()
        self._host.draining = True
        self._end_arriving()
        for connection in list(self._host.connections):
            connection.drain()
        ended = asyncio.ensure_future(self._host.wait_until_ended())
        grace = asyncio.ensure_future(self._host.clock.sleep(grace_seconds))
        await asyncio.wait((ended, grace), return_when=asyncio.FIRST_COMPLETED)
        grace.cancel()
        if not ended.done():
            await self._cut_off()
            await ended
        for muting in list(self._host.muted):
            muting.cancel()
        logger.info("kafka listener stopped")

    def _end_arriving(self) -> None:
        for accepted in list(self._host.arriving):
            accepted.close("drain", level=logging.INFO)

    async def _cut_off(self) -> None:
        tasks, connections = list(self._host.tasks), list(self._host.connections)
        requests = len(tasks) + len(self._host.promised)
        logger.warning("drain ran out of time: connections=%d requests=%d", len(connections), requests)
        for connection in connections:
            connection.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._host.tasks.clear()  # a task that never ran could not remove itself
        self._host.promised.clear()  # a late answer has no receiver
        self._host.ended()

    async def _sweep(self) -> None:
        expire_at = self._host.clock.monotonic() + _EXPIRY_SECONDS
        while True:
            await self._host.clock.sleep(_SWEEP_SECONDS)
            now = self._host.clock.monotonic()
            for newcomers in self._host.all_newcomers:
                newcomers.expire(now)
            if self._host.somebody_waits:
                for connection in list(self._host.connections):
                    connection.relieve(now)
            if now >= expire_at:
                expire_at = now + _EXPIRY_SECONDS
                for connection in list(self._host.connections):
                    connection.expire(now)
