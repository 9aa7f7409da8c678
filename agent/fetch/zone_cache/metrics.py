"""What the zone cache counts, for Prometheus.

Place: written by asking.py, serving.py and shared.py, read by the HTTP listener.
Invariant: counted per call or per range, never per batch; labels have few values.
If the process dies here the counters start again at 0, as Prometheus expects.
"""

from __future__ import annotations

import enum

from prometheus_client import CollectorRegistry, Counter


class Fallback(enum.StrEnum):
    """Why a range came from the object store although another agent keeps its chunk."""

    DOWN = "down"
    """No connection, or it ended."""
    SLOW = "slow"
    """No answer within zone.cache.timeout.ms."""
    RESTING = "resting"
    """The agent failed a moment ago and is left alone."""
    BUSY = "busy"
    """It has, or we await, too much already."""
    WRONG = "wrong"
    """Short, altered or forged bytes."""
    FAILED = "failed"
    """It could not read the range itself."""


class ZoneCacheMetrics:
    """One set per agent; `registry` is what its HTTP listener shows."""

    def __init__(self, registry: CollectorRegistry) -> None:
        rpcs = Counter(
            "headrace_zone_cache_rpcs_total",
            "Calls between agents for ranges of segment files",
            ["direction"],
            registry=registry,
        )
        self.rpcs_sent = rpcs.labels("sent")
        self.rpcs_served = rpcs.labels("served")
        ranges = Counter("headrace_zone_cache_ranges_total", "Ranges in those calls", ["direction"], registry=registry)
        self.ranges_sent = ranges.labels("sent")
        self.ranges_served = ranges.labels("served")
        self.refused = Counter(
            "headrace_zone_cache_refused_total", "Calls refused: no proof of the cluster's secret", registry=registry
        )
        self._fallbacks = Counter(
            "headrace_zone_cache_fallbacks_total",
            "Ranges read from the object store because the agent that keeps them did not deliver",
            ["reason"],
            registry=registry,
        )

    def fell_back(self, reason: Fallback, ranges: int = 1) -> None:
        """Count ranges that the store had to deliver."""
        self._fallbacks.labels(reason.value).inc(ranges)
