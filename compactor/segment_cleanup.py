"""Job kind `clean-up-segments`: ends keys of remote segments that no worker and no deletion brings to their end.

    orphans      uploads without a lease: DELETE_STARTED; the janitor deletes their objects (janitor.py)
    reservations ids that no key names: their objects are deleted
    tombstones   for keys that are deleted, if the janitor stopped in between; removed after delete.retention.ms
    partitions   DELETE_PARTITION_FINISHED once their keys have tombstones, a tombstone once these are gone
    audit        its oldest records go
    keys         for merged files that were readable before there were keys

Place: run by the job loop, every segments.cleanup.interval.ms, by one worker at a time.
Invariant: each step is a short transaction, fenced by the lease where it decides something, and costs what it finds: no
scan goes over live segments, or over what is gone. After a crash, the next run continues.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter

from headrace.jobs.lease import Lease
from headrace.metastore.api.jobs import Job
from headrace.metastore.api.segments import SegmentApi

ROWS_PER_CALL = 1_000


class SegmentCleanupMetrics:
    """One set per process with the role compactor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.changed = Counter(
            "headrace_segment_cleanup_total",
            "Rows of the lifecycle of remote segments that the cleanup changed or removed, by step",
            ["step"],
            registry=registry,
        )


class CleanupTerms(Protocol):
    """How long what is deleted is kept: the part of Settings that the cleanup needs."""

    @property
    def segments_tombstone_retention_ms(self) -> int:
        """Retention of tombstones in ms."""

    @property
    def segments_audit_retention_ms(self) -> int:
        """Retention of the audit trail in ms."""


class SegmentCleanup:
    """A jobs.runner.Handler."""

    def __init__(self, api: SegmentApi, terms: CleanupTerms, metrics: SegmentCleanupMetrics) -> None:
        self._api = api
        self._terms = terms
        self._metrics = metrics

    async def handle(self, job: Job, lease: Lease) -> None:
        """One round of all steps. FencedError if the lease is lost."""
        api, token, terms, most = self._api, lease.token, self._terms, ROWS_PER_CALL
        tombstone_ms = terms.segments_tombstone_retention_ms
        audit_ms = terms.segments_audit_retention_ms
        steps: dict[str, Callable[[], Awaitable[int]]] = {
            "orphans": lambda: api.end_orphaned_segments(token, most),
            "reservations": lambda: api.end_unused_reservations(token, most),
            "tombstones": lambda: api.tombstone_segments(most),
            "removed": lambda: api.remove_tombstones(token, older_than_ms=tombstone_ms, limit=most),
            "partitions": lambda: api.finish_partition_deletes(most),
            "audit": lambda: api.trim_audit(token, older_than_ms=audit_ms, limit=most),
            "keyed": lambda: api.key_merged_file(token),
        }
        for name, step in steps.items():
            total = 0
            while changed := await step():
                total += changed
                lease.progress = f"{name}={total}"
            self._metrics.changed.labels(name).inc(total)
