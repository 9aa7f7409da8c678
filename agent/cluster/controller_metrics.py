"""A controller's metrics, KIP-631's names in our spelling (C14).

Place: beside agent/cluster/controller.py. If the process dies here nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from storage.clock import Clock


@dataclass
class Commit:
    """One call that may append; `records` is filled in once it did."""

    records: int = 0


class ControllerMetrics:
    """One set per process with the controller role."""

    def __init__(self, clock: Clock, registry: CollectorRegistry) -> None:
        self._clock = clock
        self.active = Gauge(
            "headrace_controller_active", "1 in the process that is the active controller", registry=registry
        )
        self.snapshot_lag = Gauge(
            "headrace_metadata_snapshot_lag_records",
            "Records of the metadata log after its newest snapshot, as the active controller last saw",
            registry=registry,
        )
        self._lag = Gauge(
            "headrace_controller_metadata_lag_records",
            "Records of the metadata log that this controller had not applied at its last turn",
            registry=registry,
        )
        self._committed = Counter(
            "headrace_metadata_committed_records",
            "Records committed to the metadata log, by anybody, as this controller followed them",
            registry=registry,
        )
        self._latency = Histogram(
            "headrace_metadata_commit_seconds",
            "How long the active controller's appends to the metadata log took",
            registry=registry,
        )

    def followed(self, records: int) -> None:
        """A turn found so many records that were not applied yet; fewer than none after a restore."""
        self._lag.set(max(records, 0))
        self._committed.inc(max(records, 0))

    @contextmanager
    def commit(self) -> Iterator[Commit]:
        """Measure a call, if it appended anything."""
        commit, began = Commit(), self._clock.monotonic()
        yield commit
        if commit.records:
            self._latency.observe(self._clock.monotonic() - began)
