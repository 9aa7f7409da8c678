"""A controller's metrics, with KIP-631's names in Prometheus spelling (C14).

Place: used by agent/cluster/controller.py; metadata_metrics.py has the metrics of every process that follows the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.metastore.api.reports import JobCount


class ControllerMetrics:
    """One set per process with the controller role."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.active = Gauge(
            "headrace_controller_active", "1 in the process that is the active controller", registry=registry
        )
        self.snapshot_lag = Gauge(
            "headrace_metadata_snapshot_lag_records",
            "Records of the metadata log after its newest snapshot, on the active controller; 0 on standbys",
            registry=registry,
        )
        self.lag = Gauge(
            "headrace_controller_metadata_lag_records",
            "Records of the metadata log that this controller had not applied in its last round",
            registry=registry,
        )
        self.hidden = Counter(
            "headrace_controller_agents_hidden_total",
            "Agents that this controller hid from clients because their process was gone",
            registry=registry,
        )
        self._jobs = Gauge(
            "headrace_jobs",
            "Background jobs of the cluster, on the active controller; finished ones count for a day",
            ["kind", "state"],
            registry=registry,
        )
        self._overdue = Gauge(
            "headrace_jobs_overdue_seconds",
            "Age of the oldest due job without a worker, on the active controller",
            ["kind"],
            registry=registry,
        )

    def show_jobs(self, counts: Sequence[JobCount]) -> None:
        """Replaces the previous counts."""
        self._jobs.clear()
        self._overdue.clear()
        overdue_ms: dict[str, int] = {}
        for count in counts:
            self._jobs.labels(count.kind, count.state.name.lower()).set(count.jobs)
            overdue_ms[count.kind] = max(overdue_ms.get(count.kind, 0), count.overdue_ms)
        for kind, longest_ms in overdue_ms.items():
            self._overdue.labels(kind).set(longest_ms / 1000)
