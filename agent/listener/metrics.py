"""Metrics of the Kafka listener, for Prometheus.

Place: used by every connection; read by the HTTP listener's /metrics.
Invariant: events that happen once per request are counted in request_counts.py, not here.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from headrace.agent.listener.request_counts import RequestCounts


class ListenerMetrics:
    """One set per listener; a second one needs a separate registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.requests = RequestCounts()
        registry.register(self.requests)
        self.connections = Gauge("headrace_kafka_connections", "Open connections.", registry=registry)
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
            "headrace_kafka_budget_bytes", "Bytes reserved by produce frames in progress.", registry=registry
        )

    def watch_budget(self, in_use_bytes: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Read the memory budget when Prometheus asks."""
        self._budget.set_function(in_use_bytes)
        self._paused.set_function(waiting)

    def connection_closed(self, reason: str) -> None:
        """Count a connection that the agent closed; `reason` is one of the words of agent/listener/connection.py."""
        self._closed.labels(reason).inc()
