"""State that all connections of one listener share, with its log lines about slow requests.

Place: created by the server, passed to every connection. `SlowRequests.report` is called by the replies of every
connection when a reply is sent that took longer than slow.request.ms: who asked for what, and where the time went.
ProduceBytes is what the listener has of Produce requests, also of incomplete ones: the flusher of the write path
closes a file early only while no more bytes arrive.
Invariant: belongs to one event loop. The slab is filled and emptied within one callback of that loop,
so one slab is enough for all connections.
What a client asked to wait for does not count as slow: a Fetch's max.wait, and the rounds of JoinGroup and
SyncGroup, which wait for other members. At most LINES lines a minute and API; the next one has the number left out.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.agent.access.listener_security import ListenerSecurity
from headrace.agent.access.quotas.client_traffic import ClientTraffic
from headrace.agent.access.quotas.enforcement import QuotaEnforcer
from headrace.agent.listener.admission import LOCAL_EXTRA, Admission, Newcomers
from headrace.agent.listener.memory import MemoryBudget, ReplyMemory
from headrace.agent.listener.metrics import ListenerMetrics
from headrace.agent.listener.replies import Slot
from headrace.config.settings import Settings
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.protocol.ordered_requests import CLIENT_KEYS
from headrace.protocol.own_requests import api_name
from headrace.protocol.request import ANONYMOUS, ClientConnection, RequestHandler
from headrace.storage.clock import Clock
from headrace.storage.repetition import LIMITED, Repetitions

if TYPE_CHECKING:
    from headrace.agent.listener.connection import KafkaConnection
    from headrace.agent.listener.connection_limits import AcceptedSocket

logger = logging.getLogger(__name__)

LINES = 5
_ROUNDS = frozenset({int(ApiKey.JOIN_GROUP), int(ApiKey.SYNC_GROUP)})
_WITHOUT_REPLICA = 15
"""The first version of Fetch that begins with the wait: before it is the replica's id."""
_INT = struct.Struct(">i")


class SlowRequests:
    """For one listener. `slow_ms` 0: no lines."""

    def __init__(self, slow_ms: int) -> None:
        self.seconds = slow_ms / 1000 if slow_ms else math.inf
        self._repetitions = Repetitions(lines=LINES)

    def report(self, client: ClientConnection, slot: Slot, now: float) -> None:
        """The reply is about to be sent, and took longer than `seconds`."""
        header = slot.header
        if header.api_key in _ROUNDS or now - slot.received_at - slot.asked_wait_seconds < self.seconds:
            return
        left_out = self._repetitions.left_out(header.api_key, now)
        if left_out is None:
            return
        logger.warning(
            "slow request: api=%s seconds=%.1f handled_seconds=%.1f waited_for_earlier_replies_seconds=%.1f"
            " client_id=%r principal=%s peer=%s listener=%s left_out=%d",
            api_name(header.api_key),
            now - slot.received_at,
            slot.made_at - slot.received_at,
            now - slot.made_at,
            header.client_id,
            client.principal or ANONYMOUS,
            client.peer,
            client.listener,
            left_out,
            extra=LIMITED,
        )


def asked_wait_seconds(version: int, body: memoryview) -> float:
    """Return how long a Fetch of this version may wait for records; 0 if its body is too short."""
    start = 0 if version >= _WITHOUT_REPLICA else _INT.size
    if len(body) < start + _INT.size:
        return 0.0
    milliseconds: int = _INT.unpack_from(body, start)[0]
    return max(0, milliseconds) / 1000.0


class ProduceBytes:
    """Count of Produce bytes, for all connections of one listener. For one event loop; not thread-safe."""

    def __init__(self, budget: MemoryBudget | None = None) -> None:
        """`budget`: the memory that the requests wait for; None if they wait for none."""
        self.budget = budget or MemoryBudget(0)
        self.last_at = float("-inf")
        """When the last byte of one arrived, on Clock.monotonic()."""
        self.reads = 0
        """How often bytes arrived."""
        self.half_received = 0
        """Requests with a started, incomplete frame."""

    def saw(self, now: float) -> None:
        """Bytes of a Produce request arrived."""
        self.last_at = now
        self.reads += 1


SLAB_BYTES = 128 * 1024
"""Size of one read of small frames. A larger slab gains little, a smaller one costs more calls."""
UNKNOWN_FRAME_BYTES = 512 * 1024
"""Largest frame before authentication, where the listener authenticates, and of an API that is not Kafka's."""
ENVELOPE_BYTES = 64 * 1024
"""What an envelope of a forwarded request adds to it, at most."""
FRESH_SECONDS = 1.0
"""A newcomer of this age is not closed for a newer one of its address: it may be in the middle of its handshake."""
ENDS_PER_MINUTE = 50
"""Log lines about connections that the agent ended: one per address and reason, and so many of all."""
_SMALL_PRODUCE_BYTES = 2 * 1024 * 1024
"""Producers send up to 1 MiB by default."""
_SMALL_REQUEST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for clients; names and meanings as in config/settings.py."""

    socket_request_max_bytes: int
    buffer_memory_bytes: int
    max_inflight_requests: int
    max_connections: int
    connections_max_idle_ms: int
    request_memory_bytes: int = 64 * 1024 * 1024
    reply_memory_bytes: int = 128 * 1024 * 1024
    control_request_max_bytes: int = 8 * 1024 * 1024
    request_max_elements: int = 10_000
    max_connections_per_ip: int = 2**31 - 1
    max_connection_creation_rate: int = 2**31 - 1
    max_unauthenticated_connections: int = 500
    unauthenticated_connections_max_ms: int = 60_000
    slow_request_ms: int = 0
    local_connections: int = 0
    """Connections beyond the limit that are left to this machine."""

    @classmethod
    def from_settings(cls, settings: Settings) -> Limits:
        return cls(
            socket_request_max_bytes=settings.socket_request_max_bytes,
            buffer_memory_bytes=settings.buffer_memory_bytes,
            max_inflight_requests=settings.max_inflight_requests,
            max_connections=settings.max_connections,
            connections_max_idle_ms=settings.connections_max_idle_ms,
            request_memory_bytes=settings.request_memory_bytes,
            reply_memory_bytes=settings.reply_memory_bytes,
            control_request_max_bytes=settings.control_request_max_bytes,
            request_max_elements=settings.request_max_elements,
            max_connections_per_ip=settings.max_connections_per_ip,
            max_connection_creation_rate=settings.max_connection_creation_rate,
            max_unauthenticated_connections=settings.max_unauthenticated_connections,
            unauthenticated_connections_max_ms=settings.unauthenticated_connections_max_ms,
            slow_request_ms=settings.slow_request_ms,
            local_connections=LOCAL_EXTRA,
        )

    def largest_frame(self, api_key: int, client: ClientConnection) -> tuple[int, str]:
        """(bytes of the largest frame that is read, the limit's name)."""
        if not client.is_known:
            return UNKNOWN_FRAME_BYTES, "unauthenticated"
        if api_key == ApiKey.PRODUCE:
            return self.socket_request_max_bytes, "socket.request.max.bytes"
        if api_key in APIS or api_key in CLIENT_KEYS:
            return self.control_request_max_bytes, "control.request.max.bytes"
        if client.is_link:
            return self.control_request_max_bytes + ENVELOPE_BYTES, "control.request.max.bytes"
        return UNKNOWN_FRAME_BYTES, "unknown_api"


@dataclass(frozen=True, slots=True)
class Entrance:
    """One bound address: the listener's name, and who may connect to it. `security` None: PLAINTEXT."""

    name: str
    admission: Admission
    newcomers: Newcomers
    security: ListenerSecurity | None


RefusedCertificate = Callable[[ClientConnection, str | None, str, object], None]
"""Gets the connection, its client id (not known yet), the mechanism (SSL) and the reason."""


def not_noted(connection: ClientConnection, client_id: str | None, mechanism: str, reason: object) -> None:
    """A refused certificate is in the log only."""


class ConnectionHost:
    """The listener's handler, limits, clock, metrics and memory, and its connections."""

    def __init__(
        self,
        handle: RequestHandler,
        limits: Limits,
        clock: Clock,
        metrics: ListenerMetrics,
        max_connections: Callable[[], int] | None = None,
        refused_certificate: RefusedCertificate = not_noted,
    ) -> None:
        """`max_connections` is called for each new connection; None: the value in the limits."""
        self.handle = handle
        self.limits = limits
        self.slow = SlowRequests(limits.slow_request_ms)
        self.admission = Admission(
            max_connections or (lambda: limits.max_connections),
            clock,
            per_ip_max=limits.max_connections_per_ip,
            rate_max=limits.max_connection_creation_rate,
            local_extra=limits.local_connections,
        )
        """For clients, over all addresses that they may connect to."""
        self.clock = clock
        self.all_newcomers: list[Newcomers] = []
        self._newcomers = self._no_newcomers()
        self.quotas: QuotaEnforcer | None = None
        """While client quotas are set."""
        self.traffic: ClientTraffic | None = None
        """What counts by user and client id, if anything does."""
        self.refused_certificate = refused_certificate
        self.metrics = metrics
        self._ends = Repetitions()
        self._all_ends = Repetitions(lines=ENDS_PER_MINUTE)
        self.budget = MemoryBudget(
            limits.buffer_memory_bytes,
            small_bytes=_SMALL_PRODUCE_BYTES,
            small_reserve=limits.buffer_memory_bytes // 2,
        )
        """Of Produce frames."""
        self.requests = MemoryBudget(
            limits.request_memory_bytes,
            small_bytes=_SMALL_REQUEST_BYTES,
            small_reserve=limits.request_memory_bytes // 2,
        )
        """Of all other frames."""
        self.replies = ReplyMemory(limits.reply_memory_bytes)
        self.produce_bytes = ProduceBytes(self.budget)
        self.slab = memoryview(bytearray(SLAB_BYTES))
        self.arriving: set[AcceptedSocket] = set()
        """Sockets that are no KafkaConnection yet."""
        self.connection_bytes = 0
        """What all open sockets take while they are idle."""
        self.connections: set[KafkaConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        """Handlers in progress; they may run longer than their connection."""
        self.promised: set[Slot] = set()
        """Requests in progress without a task; they may also last longer than their connection."""
        self.muted: set[asyncio.Task[None]] = set()
        """One for each connection with a client over its quota."""
        self.draining = False
        self.suspended = False
        """Clients are sent away until it ends."""
        self._all_ended = asyncio.Event()
        self._last_connection_id = 0
        metrics.watch_memory(self.budget, self.requests, self.replies)
        metrics.watch_newcomers(lambda: sum(map(len, self.all_newcomers)))

    @property
    def memory_is_short(self) -> bool:
        """Whether connections should read little at a time."""
        return self.budget.waiting > 0 or self.requests.is_tight

    @property
    def somebody_waits(self) -> bool:
        """Whether a frame or a reply waits for memory."""
        return self.budget.waiting > 0 or self.requests.waiting > 0 or self.replies.waiting > 0

    def entrance(self, name: str, security: ListenerSecurity | None, *, for_agents: bool) -> Entrance:
        """Return an entrance for a new listener. Connections of agents count separately, so that clients cannot
        take them all, as in Kafka.
        """
        if not for_agents:
            return Entrance(name, self.admission, self._newcomers, security)
        admission = Admission(lambda: self.limits.max_connections, self.clock)
        return Entrance(name, admission, self._no_newcomers(), security)

    def _no_newcomers(self) -> Newcomers:
        seconds = self.limits.unauthenticated_connections_max_ms / 1000
        most = self.limits.max_unauthenticated_connections
        made = Newcomers(lambda: most, seconds, fresh_seconds=min(FRESH_SECONDS, seconds))
        self.all_newcomers.append(made)
        return made

    def log_end(self, event: str, peer: str, listener: str, reason: str, *, level: int = logging.WARNING) -> None:
        """A connection was refused or closed. A client that connects again and again gets one line per minute."""
        address, now = peer.rpartition(":")[0], self.clock.monotonic()
        left_out = self._ends.left_out((address, listener, reason.partition(":")[0]), now)
        if left_out is not None and self._all_ends.left_out("", now) is not None:
            message = "%s: peer=%s listener=%s left_out=%d reason=%s"
            logger.log(level, message, event, peer, listener, left_out, reason, extra=LIMITED)

    def next_connection_id(self) -> int:
        """A number that no other connection of this listener has."""
        self._last_connection_id += 1
        return self._last_connection_id

    def forget(self, task: asyncio.Task[None] | None) -> None:
        """A handler's task has ended."""
        if task is not None:
            self.tasks.discard(task)
        self.ended()

    def ended(self) -> None:
        """A connection or a handler has ended."""
        if not self.connections and not self.tasks and not self.promised:
            self._all_ended.set()

    async def wait_until_ended(self) -> None:
        """Return after all connections and requests have ended; only meaningful while draining."""
        self._all_ended.clear()
        self.ended()
        await self._all_ended.wait()
