"""A controller's metrics, KIP-631's names in our spelling (C14).

Place: beside agent/cluster/controller.py; what every process that follows the log shows stands in
metadata_metrics.py. If the process dies here nothing is lost.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge


class ControllerMetrics:
    """One set per process with the controller role."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.active = Gauge(
            "headrace_controller_active", "1 in the process that is the active controller", registry=registry
        )
        self.snapshot_lag = Gauge(
            "headrace_metadata_snapshot_lag_records",
            "Records of the metadata log after its newest snapshot, as the active controller last saw; 0 on standbys",
            registry=registry,
        )
        self.lag = Gauge(
            "headrace_controller_metadata_lag_records",
            "Records of the metadata log that this controller had not applied at its last turn",
            registry=registry,
        )
