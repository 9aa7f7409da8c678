"""Metrics of the upkeep that this process did.

Place: used by jobs.py.
"""

from __future__ import annotations

import contextlib

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.tables.upkeep.steps import UpkeepReport


class UpkeepMetrics:
    """One set per process with the role tables."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.orphans = Counter(
            "headrace_table_orphans_removed_total",
            "Data files that no commit of the table has, and that were removed",
            ["table"],
            registry=registry,
        )
        self._deleted = Counter(
            "headrace_table_retention_deleted_rows_total",
            "Rows that were older than the table's retention, and were deleted",
            ["table"],
            registry=registry,
        )
        self._replaced = Counter(
            "headrace_table_replaced_files_total",
            "Small data files that upkeep replaced by larger ones",
            ["table"],
            registry=registry,
        )
        self._expired = Counter(
            "headrace_table_expired_snapshots_total", "Snapshots that upkeep removed", ["table"], registry=registry
        )
        self._files = Gauge(
            "headrace_table_files",
            "Data files of the table and its dead letters, as of the newest upkeep by this process",
            ["table"],
            registry=registry,
        )
        self._manifests = Gauge(
            "headrace_table_manifests",
            "Manifests of the table and its dead letters, as of the newest upkeep by this process",
            ["table"],
            registry=registry,
        )

    def done(self, table: str, report: UpkeepReport) -> None:
        """Show one run."""
        self._deleted.labels(table).inc(report.deleted.rows)
        self._replaced.labels(table).inc(report.rewritten.replaced)
        self._expired.labels(table).inc(report.expired)
        self._files.labels(table).set(report.files)
        self._manifests.labels(table).set(report.manifests)

    def forget(self, table: str) -> None:
        """The table was dropped."""
        for gauge in (self._files, self._manifests):
            with contextlib.suppress(KeyError):
                gauge.remove(table)
