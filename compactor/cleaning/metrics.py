"""Metrics of log compaction by key, for /metrics; the first three are Kafka's.

Place: used by planner.py and job.py.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.compactor.cleaning.rewrite import JudgedBatch


class CleaningMetrics:
    """One set per process with the role compactor. The gauges hold for the process that planned or cleaned last."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.uncleanable = Gauge(
            "headrace_log_cleaner_uncleanable_partitions_count",
            "Partitions of compacted topics that could not be cleaned: see the log for the reason",
            registry=registry,
        )
        self.clean_seconds = Gauge(
            "headrace_log_cleaner_max_clean_time_secs",
            "Duration of the last cleaning of a partition, the longest of its job",
            registry=registry,
        )
        self.delay_seconds = Gauge(
            "headrace_log_cleaner_max_compaction_delay_secs",
            "How long the most overdue partition is beyond max.compaction.lag.ms",
            registry=registry,
        )
        self.dirty_share = Gauge(
            "headrace_log_cleaner_max_dirty_percent", "Highest share of dirty bytes of a partition", registry=registry
        )
        self.rolled = Counter("headrace_log_cleaner_rolled_parts", "Active parts that ended", registry=registry)
        self.planned = Counter("headrace_log_cleaner_planned_partitions", "Passes planned", registry=registry)
        self.ended = Counter(
            "headrace_log_cleaner_passes",
            "Passes over a partition: done, lost to another writer, uncleanable, left to Spark, or with altered reads",
            ["outcome"],
            registry=registry,
        )
        self.handed_over = Counter(
            "headrace_log_cleaner_handed_over_jobs",
            "Cleaning jobs that Spark did not finish and that moved to the workers",
            registry=registry,
        )
        self.read_bytes = Counter("headrace_log_cleaner_read_bytes", "Bytes of extents read", registry=registry)
        self.written_bytes = Counter(
            "headrace_log_cleaner_written_bytes", "Bytes of extents written", registry=registry
        )
        self.altered = Counter(
            "headrace_log_cleaner_altered_reads",
            "Reads of passes that failed their check, and were repeated",
            registry=registry,
        )
        self._removed = Counter(
            "headrace_log_cleaner_removed_records",
            "Records removed: superseded, expired delete markers, without a key, of aborted transactions",
            ["reason"],
            registry=registry,
        )

    def judged(self, batch: JudgedBatch) -> None:
        """Count what a batch loses."""
        self.removed(batch.superseded, batch.expired, batch.keyless, batch.aborted)

    def removed(self, superseded: int, expired: int, keyless: int, aborted: int) -> None:
        """Count removed records by reason; `aborted` counts markers of transactions, too."""
        for reason, count in (
            ("superseded", superseded),
            ("expired_marker", expired),
            ("no_key", keyless),
            ("aborted", aborted),
        ):
            if count:
                self._removed.labels(reason).inc(count)
