"""Metrics of the Kafka listener, for Prometheus.

Place: used by every connection; read by the HTTP listener's /metrics.
Invariant: events that happen once per request are counted in request_counts.py, not here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from headrace.agent.limits.limit_metrics import limits_reached
from headrace.agent.listener.memory import MemoryBudget
from headrace.agent.listener.reply_memory import ReplyMemory
from headrace.agent.listener.request_counts import RequestCounts


class ListenerMetrics:
    """One set per listener; a second one needs a separate registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.requests = RequestCounts()
        registry.register(self.requests)
        self.connections = Gauge("headrace_kafka_connections", "Open connections.", registry=registry)
        self._newcomers = Gauge(
            "headrace_kafka_unauthenticated_connections",
            "Open connections before PROXY header, TLS handshake and authentication are complete.",
            registry=registry,
        )
        self._closed = Counter(
            "headrace_kafka_connections_closed", "Connections that the agent closed.", ["reason"], registry=registry
        )
        self.received_bytes = Counter("headrace_kafka_received_bytes", "Bytes read.", registry=registry)
        self.sent_bytes = Counter("headrace_kafka_sent_bytes", "Bytes of replies.", registry=registry)
        self._paused = Gauge(
            "headrace_kafka_paused_producers",
            "Connections with a produce frame that waits for memory.",
            registry=registry,
        )
        self._budget = Gauge(
            "headrace_kafka_budget_bytes", "Bytes reserved by Produce requests in progress.", registry=registry
        )
        self._memory = Gauge(
            "headrace_kafka_memory_bytes", "Bytes reserved, by share of the memory.", ["share"], registry=registry
        )
        self._waiting = Gauge(
            "headrace_kafka_memory_waiting",
            "Frames and replies that wait, by share of the memory.",
            ["share"],
            registry=registry,
        )
        self._certificates = Gauge(
            "headrace_listener_certificate_expiry_seconds",
            "When the first certificate of a listener's chain expires; seconds since the epoch",
            ["listener"],
            registry=registry,
        )
        self._limits_reached = limits_reached(registry)

    def watch_memory(self, produce: MemoryBudget, requests: MemoryBudget, replies: ReplyMemory) -> None:
        """Read the shares of the memory when Prometheus asks."""
        self._budget.set_function(lambda: produce.in_use_bytes)
        self._paused.set_function(lambda: produce.waiting)
        shares: dict[str, MemoryBudget | ReplyMemory] = {"produce": produce, "requests": requests, "replies": replies}
        for name, share in shares.items():
            self._memory.labels(name).set_function(partial(getattr, share, "in_use_bytes"))
            self._waiting.labels(name).set_function(partial(getattr, share, "waiting"))

    def watch_newcomers(self, count: Callable[[], int]) -> None:
        """Read their number when Prometheus asks."""
        self._newcomers.set_function(count)

    def certificate(self, listener: str, expires_at: Callable[[], float]) -> None:
        """Show when a listener's certificate expires; seconds since the epoch."""
        self._certificates.labels(listener).set_function(expires_at)

    def refused(self, limit: str) -> None:
        """Count a request that was refused for a limit, by the limit's setting."""
        self._limits_reached.labels(limit).inc()

    def connection_closed(self, reason: str) -> None:
        """Count a connection that the agent closed; `reason` is a word of connection.py, accepted.py, admission.py."""
        self._closed.labels(reason).inc()
