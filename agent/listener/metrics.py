"""What the Kafka listener counts, for Prometheus.

Place: beside every connection; read by the HTTP listener's /metrics.
Invariant: labels are bounded: APIs and versions come from the table, all else is `other`.
If the process dies here only counts are lost.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from agent.protocol.api_versions import APIS

_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60)


class ListenerMetrics:
    """One set per listener; a second one needs a registry of its own."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._requests = Counter("headrace_kafka_requests", "Requests received.", ["api", "version"], registry=registry)
        self._latency = Histogram(
            "headrace_kafka_request_seconds",
            "From a request's last byte to its reply in the socket's queue.",
            ["api"],
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self.connections = Gauge("headrace_kafka_connections", "Open connections.", registry=registry)
        self._closed = Counter(
            "headrace_kafka_connections_closed", "Connections that the agent ended.", ["reason"], registry=registry
        )
        self.received_bytes = Counter("headrace_kafka_received_bytes", "Bytes read.", registry=registry)
        self.sent_bytes = Counter("headrace_kafka_sent_bytes", "Bytes of replies.", registry=registry)
        self._paused = Gauge(
            "headrace_kafka_paused_producers", "Connections whose produce frame waits for memory.", registry=registry
        )
        self._budget = Gauge(
            "headrace_kafka_budget_bytes", "Bytes reserved by produce frames in progress.", registry=registry
        )
        self._by_version: dict[tuple[int, int], Counter] = {}
        self._by_api: dict[int, Histogram] = {}

    def watch_budget(self, in_use_bytes: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Read the memory budget when Prometheus asks."""
        self._budget.set_function(in_use_bytes)
        self._paused.set_function(waiting)

    def request_received(self, api_key: int, version: int) -> None:
        """Count one request."""
        counter = self._by_version.get((api_key, version))
        if counter is None:
            api = APIS.get(api_key)
            known = api is not None and api.serves(version)
            labels = (api.name if api else "other", str(version) if known else "other")
            counter = self._requests.labels(*labels)
            if known:
                self._by_version[api_key, version] = counter
        counter.inc()

    def request_answered(self, api_key: int, seconds: float) -> None:
        """Note how long one request took."""
        histogram = self._by_api.get(api_key)
        if histogram is None:
            api = APIS.get(api_key)
            histogram = self._latency.labels(api.name if api else "other")
            if api is not None:
                self._by_api[api_key] = histogram
        histogram.observe(seconds)

    def connection_closed(self, reason: str) -> None:
        """Count a connection that the agent ended; `reason` is one of the words of agent/listener/connection.py."""
        self._closed.labels(reason).inc()
