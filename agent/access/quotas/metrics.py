"""Metrics of client quotas, for Prometheus.

Place: filled by enforcement.py.
Invariant: at most CLIENTS_MAX clients are named at a time, and names come from clients: Prometheus' client escapes
them. Kafka's names: `byte-rate`, `request-time` and `tokens` are `headrace_quota_used`, with the quota's key as a
label; `throttle-time` is `headrace_quota_throttle_time_seconds`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.agent.access.quotas.bucket import Bucket
from headrace.agent.access.quotas.limits import BucketKey

CLIENTS_MAX = 1_000
_LABELS = ["quota", "user", "client_id"]

Buckets = Callable[[], Iterator[tuple[BucketKey, Bucket]]]


class QuotaMetrics(Collector):
    """Quota metrics of one agent."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._buckets: Buckets = lambda: iter(())
        self._throttled: defaultdict[str, float] = defaultdict(float)
        self._times: defaultdict[str, int] = defaultdict(int)
        self.exchange_failures = 0
        registry.register(self)

    def watch(self, buckets: Buckets) -> None:
        """Read them when Prometheus asks."""
        self._buckets = buckets

    def throttled(self, key: BucketKey, seconds: float) -> None:
        """An answer said that its client is throttled for so long."""
        self._times[key.kind] += 1
        self._throttled[key.kind] += seconds

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus-client for every scrape."""
        times = CounterMetricFamily("headrace_quota_throttled", "Answers with a throttle time.", labels=["quota"])
        seconds = CounterMetricFamily(
            "headrace_quota_throttle_time_seconds", "Sum of the throttle times in answers.", labels=["quota"]
        )
        for kind, count in list(self._times.items()):
            times.add_metric([kind], count)
            seconds.add_metric([kind], self._throttled[kind])
        yield times
        yield seconds
        used = CounterMetricFamily(
            "headrace_quota_used", "What a client used at this agent since it was last idle.", labels=_LABELS
        )
        share = GaugeMetricFamily(
            "headrace_quota_share", "This agent's share of a client's quota, per second.", labels=_LABELS
        )
        for key, bucket in islice(self._buckets(), CLIENTS_MAX):
            labels = [key.kind, key.user or "", key.client_id or ""]
            used.add_metric(labels, bucket.used)
            share.add_metric(labels, bucket.share)
        yield used
        yield share
        failures = CounterMetricFamily(
            "headrace_quota_exchange_failures", "Exchanges with other agents that failed: shares stay as they were."
        )
        failures.add_metric([], self.exchange_failures)
        yield failures
