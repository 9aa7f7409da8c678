"""State that all connections of one listener share.

Place: created by the server, passed to every connection.
Invariant: belongs to one event loop. The slab is filled and emptied within one callback of that loop,
so one slab is enough for all connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.agent.listener.memory import MemoryBudget
from headrace.agent.listener.metrics import ListenerMetrics
from headrace.agent.listener.produce_bytes import ProduceBytes
from headrace.agent.listener.replies import Slot
from headrace.config.settings import Settings
from headrace.protocol.request import RequestHandler
from headrace.storage.clock import Clock

if TYPE_CHECKING:
    from headrace.agent.listener.connection import KafkaConnection

SLAB_BYTES = 128 * 1024
"""Size of one read of small frames. A larger slab gains little, a smaller one costs more calls."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for clients; names and meanings as in config/settings.py."""

    socket_request_max_bytes: int
    buffer_memory_bytes: int
    max_inflight_requests: int
    max_connections: int
    connections_max_idle_ms: int

    @classmethod
    def from_settings(cls, settings: Settings) -> Limits:
        return cls(
            socket_request_max_bytes=settings.socket_request_max_bytes,
            buffer_memory_bytes=settings.buffer_memory_bytes,
            max_inflight_requests=settings.max_inflight_requests,
            max_connections=settings.max_connections,
            connections_max_idle_ms=settings.connections_max_idle_ms,
        )


class ConnectionHost:
    """The listener's handler, limits, clock, metrics and memory, and its connections."""

    def __init__(
        self,
        handle: RequestHandler,
        limits: Limits,
        clock: Clock,
        metrics: ListenerMetrics,
        max_connections: Callable[[], int] | None = None,
    ) -> None:
        """`max_connections` is called for each new connection; None: the value in the limits."""
        self.handle = handle
        self.limits = limits
        self._max_connections = max_connections or (lambda: limits.max_connections)
        self.clock = clock
        self.metrics = metrics
        self.budget = MemoryBudget(limits.buffer_memory_bytes)
        self.produce_bytes = ProduceBytes()
        self.produce_bytes.waits_for_memory = lambda: self.budget.waiting > 0
        self.slab = memoryview(bytearray(SLAB_BYTES))
        self.connections: set[KafkaConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        """Handlers in progress; they may run longer than their connection."""
        self.promised: set[Slot] = set()
        """Requests in progress without a task; they may also last longer than their connection."""
        self.draining = False
        self._all_ended = asyncio.Event()
        self._last_connection_id = 0
        metrics.watch_budget(lambda: self.budget.in_use_bytes, lambda: self.budget.waiting)

    def next_connection_id(self) -> int:
        """A number that no other connection of this listener has."""
        self._last_connection_id += 1
        return self._last_connection_id

    def refusal(self) -> str:
        """The reason to refuse a new connection; empty if it is accepted."""
        if self.draining:
            return "drain"
        return "too_many" if len(self.connections) >= self._max_connections() else ""

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
