"""Metrics of forwarded requests, for Prometheus.

Place: written by link.py and serving.py, read by the HTTP listener.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class ForwardMetrics:
    """One set per agent; its HTTP listener shows `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        requests = Counter(
            "headrace_forwarded_requests_total",
            "Clients' requests that one agent passed on to another",
            ["direction"],
            registry=registry,
        )
        self.sent = requests.labels("sent")
        self.served = requests.labels("served")
        self.lost = Counter(
            "headrace_forwarded_lost_total",
            "Forwarded requests that were answered COORDINATOR_NOT_AVAILABLE because their link was lost",
            registry=registry,
        )
        self.dropped = Counter(
            "headrace_forwarded_dropped_total",
            "Forwarded requests that did not start: too late, or their client was gone",
            registry=registry,
        )
        self.refused = Counter(
            "headrace_forwarded_refused_total",
            "Links and envelopes that were refused: without the cluster's secret, or malformed",
            registry=registry,
        )
        self.links = Gauge("headrace_forward_links", "Open links to other agents", registry=registry)
