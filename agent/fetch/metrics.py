"""What the read path counts, for Prometheus.

Place: written by every file of agent/fetch, read by the HTTP listener.
Invariant: a label has few values; topics and partitions are never labels.
If the process dies here the counters start again at 0, as Prometheus expects.
"""

from __future__ import annotations

import logging

from prometheus_client import Counter, Gauge

from storage.errors import CorruptError, HeadraceError, NotFoundError

log = logging.getLogger(__name__)

BYTES = Counter("headrace_fetch_bytes_total", "Record bytes handed to consumers")
WAITING = Gauge("headrace_fetch_waiting", "Fetch requests that wait for data")
PRIMARY_QUERIES = Counter("headrace_fetch_primary_queries_total", "Fetches that had to ask the metastore")
STORAGE_ERRORS = Counter(
    "headrace_fetch_storage_errors_total",
    "Partitions answered with KAFKA_STORAGE_ERROR; missing and corrupt are data loss until proven otherwise: alert",
    ["reason"],
)
_CACHE_READS = Counter("headrace_fetch_cache_reads_total", "Byte ranges looked for in the cache", ["result"])
CACHE_HITS = _CACHE_READS.labels("hit")
CACHE_MISSES = _CACHE_READS.labels("miss")
CACHE_BYTES = Gauge("headrace_fetch_cache_bytes", "Bytes of segment files in the cache")
FEED_POLLS = Counter("headrace_fetch_feed_polls_total", "Polls of the commit feed", ["result"])
FEED_LOST = Counter("headrace_fetch_feed_lost_shards_total", "Shards whose feed could not be followed without a gap")
SESSIONS = Gauge("headrace_fetch_sessions", "Incremental fetch sessions (KIP-227) that are open")


def report_unreadable(partition_key: int, wanted: str, error: HeadraceError) -> None:
    """Count and log a partition whose stored data could not be read; `wanted` is a field of the log line."""
    reason = "unavailable"
    if isinstance(error, NotFoundError | CorruptError):
        reason = "missing" if isinstance(error, NotFoundError) else "corrupt"
    STORAGE_ERRORS.labels(reason).inc()
    log.error("read failed: reason=%s partition_key=%d %s error=%s", reason, partition_key, wanted, error)
