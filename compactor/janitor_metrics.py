"""What janitor and sweeper count, for Prometheus.

Place: beside compactor/janitor.py and sweeper.py. If the process dies here only counts are lost.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class JanitorMetrics:
    """One set per process with the role compactor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        deleted = Counter(
            "headrace_janitor_objects_deleted_total",
            "Objects whose deletion the store confirmed, by why: dead files, and orphans that no row named",
            ["reason"],
            registry=registry,
        )
        self.dead_deleted = deleted.labels("dead")
        self.orphans_deleted = deleted.labels("orphan")
        self.bytes_deleted = Counter(
            "headrace_janitor_deleted_bytes_total", "Bytes of dead files that were deleted", registry=registry
        )
        self.unconfirmed = Counter(
            "headrace_janitor_unconfirmed_total",
            "Deletions that the store did not confirm; they are repeated",
            registry=registry,
        )
        self.listed = Counter(
            "headrace_sweeper_objects_listed_total", "Objects that the sweeper saw", registry=registry
        )
        self.refused = Gauge(
            "headrace_janitor_refused",
            "1 while nothing is deleted because the metastore was restored and not audited",
            registry=registry,
        )
