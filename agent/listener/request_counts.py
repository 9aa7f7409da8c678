"""Counters of requests: plain numbers, converted to Prometheus' types when it scrapes.

Place: under agent/listener/metrics.py, because prometheus-client's counters take a lock per step, which costs
a tenth of a whole small request.
Invariant: written only by the listener's event loop; a scrape from another thread may miss a request of
that moment, and the next scrape has it. Labels are limited: APIs and versions come from the table, all others are
`other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

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
