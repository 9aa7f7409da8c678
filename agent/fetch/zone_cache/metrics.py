"""Metrics of the zone cache, for Prometheus.

Place: written by asking.py, serving.py and shared.py, read by the HTTP listener.
Invariant: counted per call or per range, never per batch; labels have few values.
"""

from __future__ import annotations

import enum

from prometheus_client import CollectorRegistry, Counter

from headrace.storage.counter_labels import from_zero


class Fallback(enum.StrEnum):
    """Why a range was read from the object store although another agent owns its chunk."""

    DOWN = "down"
    """No connection, or it was closed."""
    SLOW = "slow"
    """No answer within zone.cache.timeout.ms."""
    RESTING = "resting"
    """The agent failed recently and is skipped."""
    BUSY = "busy"
    """It serves too many ranges already, or too many are awaited from it."""
    WRONG = "wrong"
    """Truncated, altered or forged bytes."""
    FAILED = "failed"
    """It could not read the range itself."""


class ZoneCacheMetrics:
    """One set per agent; its HTTP listener shows `registry`."""

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
            "headrace_zone_cache_refused_total", "Calls refused for an invalid MAC", registry=registry
        )
        fallbacks = Counter(
            "headrace_zone_cache_fallbacks_total",
            "Ranges read from the object store because their owner did not deliver them",
            ["reason"],
            registry=registry,
        )
        self._fallbacks = from_zero(fallbacks, Fallback)

    def fell_back(self, reason: Fallback, ranges: int = 1) -> None:
        """Count ranges that were read from the store instead."""
        self._fallbacks.labels(reason.value).inc(ranges)
