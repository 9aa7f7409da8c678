"""Metrics of the Kafka listener, for Prometheus.

Place: used by every connection; read by the HTTP listener's /metrics.
RequestCounts has what happens once per request: plain numbers, converted to Prometheus' types when it scrapes,
because prometheus-client's counters take a lock per step, which costs a tenth of a whole small request.
Invariant: RequestCounts is written only by the listener's event loop; a scrape from another thread may miss a
request of that moment, and the next scrape has it. Labels are limited: APIs and versions come from the table, all
others are `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.agent.limits.metrics import limits_reached
from headrace.agent.listener.memory import MemoryBudget, ReplyMemory
from headrace.protocol.api_versions import APIS

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60)
"""Upper bounds, in seconds."""
_OTHER = -1


class _Latency:
    """One API's histogram: the number per bucket (the last is unlimited), and the sum in seconds."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BUCKETS) + 1)
        self.sum = 0.0


class RequestCounts(Collector):
    """Requests by API and version, and how long they took by API."""

    def __init__(self) -> None:
        self._received: dict[tuple[int, int], int] = defaultdict(int)
        self._answered: dict[int, _Latency] = defaultdict(_Latency)
        self._unanswered: dict[int, int] = defaultdict(int)
        self._known = {
            (api.key, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)
        }

    def received(self, api_key: int, version: int) -> None:
        """Count one request."""
        if (api_key, version) not in self._known:
            api_key, version = api_key if api_key in APIS else _OTHER, _OTHER
        self._received[api_key, version] += 1

    def answered(self, api_key: int, seconds: float) -> None:
        """Note how long one request took."""
        latency = self._answered[api_key if api_key in APIS else _OTHER]
        latency.counts[bisect_left(LATENCY_BUCKETS, seconds)] += 1
        latency.sum += seconds

    def left_unanswered(self, api_key: int) -> None:
        """Count a request that gets no reply, because its connection ended."""
        self._unanswered[api_key if api_key in APIS else _OTHER] += 1

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus-client for every scrape."""
        requests = CounterMetricFamily("headrace_kafka_requests", "Requests received.", labels=["api", "version"])
        for (api_key, version), count in list(self._received.items()):
            requests.add_metric([_name(api_key), str(version) if version != _OTHER else "other"], count)
        yield requests
        unanswered = CounterMetricFamily(
            "headrace_kafka_requests_unanswered",
            "Requests without a reply because their connection ended; all others are answered or in progress.",
            labels=["api"],
        )
        for api_key, count in list(self._unanswered.items()):
            unanswered.add_metric([_name(api_key)], count)
        yield unanswered
        seconds = HistogramMetricFamily(
            "headrace_kafka_request_seconds",
            "From a request's last byte to its reply in the socket's queue.",
            labels=["api"],
        )
        bounds = [*(str(float(bound)) for bound in LATENCY_BUCKETS), "+Inf"]
        for api_key, latency in list(self._answered.items()):
            buckets = list(zip(bounds, accumulate(latency.counts), strict=True))
            seconds.add_metric([_name(api_key)], buckets, latency.sum)
        yield seconds


def _name(api_key: int) -> str:
    return APIS[api_key].name if api_key != _OTHER else "other"


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
        """Count a connection that the agent closed; `reason`: a word of connection.py or admission.py."""
        self._closed.labels(reason).inc()
