"""What all connections of one listener share.

Place: made by the server, handed to every connection.
Invariant: belongs to one event loop. The slab is filled and emptied within one callback of that loop,
so that one is enough for all connections.
If the process dies here nothing is lost.
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
"""One read of small frames. Larger gains little, smaller costs calls."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take; names and meanings as in config/settings.py."""

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
    """The listener's handler, limits, clock, metrics and memory, and who is there."""

    def __init__(
        self,
        handle: RequestHandler,
        limits: Limits,
        clock: Clock,
        metrics: ListenerMetrics,
        max_connections: Callable[[], int] | None = None,
    ) -> None:
        """`max_connections` is asked for each new connection; None: what the limits say."""
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
        """Handlers in progress; they outlive their connection."""
        self.promised: set[Slot] = set()
        """Requests in progress without a task; they outlive their connection too."""
        self.draining = False
        self._all_ended = asyncio.Event()
        self._last_connection_id = 0
        metrics.watch_budget(lambda: self.budget.in_use_bytes, lambda: self.budget.waiting)

    def next_connection_id(self) -> int:
        """A number that no other connection of this listener gets."""
        self._last_connection_id += 1
        return self._last_connection_id

    def refusal(self) -> str:
        """Why a new connection is not wanted; empty when it is."""
        if self.draining:
            return "drain"
        return "too_many" if len(self.connections) >= self._max_connections() else ""

    def forget(self, task: asyncio.Task[None] | None) -> None:
        """A handler's task comes to its end."""
        if task is not None:
            self.tasks.discard(task)
        self.ended()

    def ended(self) -> None:
        """A connection or a handler has ended."""
        if not self.connections and not self.tasks and not self.promised:
            self._all_ended.set()

    async def wait_until_ended(self) -> None:
        """Return once no connection and no request is left; only meaningful while draining."""
        self._all_ended.clear()
        self.ended()
        await self._all_ended.wait()
