"""Metrics of retention.

Place: used by compactor/retention.py.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from headrace.metastore.api.retention import LogStartAnswer


class RetentionMetrics:
    """One set per process with the role compactor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._extents = Counter(
            "headrace_retention_removed_extents", "Extents that retention removed in this process", registry=registry
        )
        self._bytes = Counter(
            "headrace_retention_removed_bytes", "Bytes of batches in these extents", registry=registry
        )

    def removed(self, answer: LogStartAnswer) -> None:
        """Count one partition's part of a call."""
        self._extents.inc(answer.removed_extents)
        self._bytes.inc(answer.removed_bytes)
