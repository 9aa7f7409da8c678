"""Metrics of compaction: results and cost, for /metrics.

Place: used by compact.py and planner.py. jobs/metrics.py counts jobs by result and their duration;
storage/objects/measured.py counts the bucket's requests and bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.compactor.merge import MergeCounts
from headrace.compactor.plan import Plan
from headrace.metastore.api.compaction import Swap, SwapOutcome


class CompactionMetrics:
    """One set per process with the role compactor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.planned = Counter(
            "headrace_compaction_planned_jobs", "Jobs planned, by level", ["level"], registry=registry
        )
        self.handed_over = Counter(
            "headrace_compaction_handed_over_jobs",
            "Large jobs that Spark did not finish in time, moved to the cluster's workers",
            registry=registry,
        )
        self.waiting = Gauge(
            "headrace_compaction_waiting_files",
            "Live files in the last plan, by level",
            ["level"],
            registry=registry,
        )
        self._bytes_in = Counter(
            "headrace_compaction_read_bytes", "Live bytes that merges planned to read, by output level",
            ["level"], registry=registry,
        )  # fmt: skip
        self._bytes_out = Counter(
            "headrace_compaction_written_bytes", "Bytes of merged files stored, by level", ["level"], registry=registry
        )
        self._files_in = Counter("headrace_compaction_input_files", "Files merged", ["level"], registry=registry)
        self._files_out = Counter("headrace_compaction_output_files", "Files written", ["level"], registry=registry)
        self._batches = Counter(
            "headrace_compaction_batches", "Batches read and written by merges", ["side"], registry=registry
        )
        self._extents = Counter(
            "headrace_compaction_extents",
            "Extents replaced by merges (before), their replacements (after), and lost ones",
            ["side"],
            registry=registry,
        )
        self._kept = Counter(
            "headrace_compaction_kept_batches",
            "Batches that could not be opened and were copied unchanged",
            registry=registry,
        )
        self._unreadable = Counter(
            "headrace_compaction_unreadable_extents", "Extents that could not be read and were not merged",
            registry=registry,
        )  # fmt: skip

        self.altered = Counter(
            "headrace_compaction_altered_reads",
            "Reads of merges that failed their check, and were repeated",
            registry=registry,
        )

    @contextmanager
    def merging(self, plan: Plan, counts: MergeCounts) -> Iterator[None]:
        """Count a merge's inputs, and its counters for every result."""
        level, files = str(plan.level), plan.by_file()
        self._files_in.labels(level).inc(len(files))
        self._bytes_in.labels(level).inc(sum(extent.length for extents in files.values() for extent in extents))
        try:
            yield
        finally:
            self._batches.labels("read").inc(counts.batches_in)
            self._batches.labels("written").inc(counts.batches_out)
            self._kept.inc(counts.kept_as_is)
            self._unreadable.inc(len(counts.damaged))

    def stored(self, level: int, size_bytes: int) -> None:
        """Count a merged file in the bucket."""
        self._files_out.labels(str(level)).inc()
        self._bytes_out.labels(str(level)).inc(size_bytes)

    def swapped(self, swaps: Sequence[Swap], outcomes: Sequence[SwapOutcome]) -> None:
        """Count the outcomes of a swap call."""
        for swap, outcome in zip(swaps, outcomes, strict=True):
            if outcome is SwapOutcome.DONE:
                self._extents.labels("before").inc(len(swap.inputs))
                self._extents.labels("after").inc()
            else:
                self._extents.labels("lost").inc()
