"""Metrics of janitor and sweeper, for Prometheus.

Place: used by compactor/janitor.py and sweeper.py.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.compactor.undecided import Undecided


class JanitorMetrics:
    """One set per process with the role compactor."""

    def __init__(self, registry: CollectorRegistry, undecided: Undecided) -> None:
        self.undecided = undecided
        deleted = Counter(
            "headrace_janitor_objects_deleted_total",
            "Objects deleted with the store's confirmation, by reason: dead files, and orphans without a row",
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
        self.set_aside = Gauge(
            "headrace_janitor_files_set_aside",
            "Dead files that the store refused to delete at the last try; they are tried again later",
            registry=registry,
        )
        self.listed = Counter(
            "headrace_sweeper_objects_listed_total", "Objects that the sweeper listed", registry=registry
        )
        self.refused = Gauge(
            "headrace_janitor_refused",
            "1 while deletion is stopped because the metastore was restored and not audited",
            registry=registry,
        )
