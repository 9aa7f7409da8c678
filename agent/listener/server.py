"""The Kafka listener: accepts connections at one or more addresses, watches them, drains them.

Place: the agent's entry point for clients; passes requests to `agent.apis.dispatch`.
Invariant: no client can stop the listener or close another client's connection, once that client is known
(newcomers.py). After `drain` no request was started, and requests in progress had the grace period.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry

from headrace.agent.access.listener_security import ListenerSecurity
from headrace.agent.access.quotas.client_traffic import ClientTraffic
from headrace.agent.access.quotas.enforcement import QuotaEnforcer
from headrace.agent.listener.arrival import ArrivingConnection
from headrace.agent.listener.bound_sockets import bound_sockets, why_unbound
from headrace.agent.listener.descriptors import ACCEPTED_AT_ONCE, BACKLOG
from headrace.agent.listener.host import ConnectionHost, Limits, RefusedCertificate, not_noted
from headrace.agent.listener.metrics import ListenerMetrics
from headrace.agent.listener.produce_bytes import ProduceBytes
from headrace.protocol.request import RequestHandler
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError
from headrace.storage.supervision import Supervisor

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
