"""Metrics of the read path, for Prometheus.

Place: written by every file of agent/fetch, read by the HTTP listener.
Invariant: counted per request or per call, never per batch; labels have few values, topics and
partitions are never labels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.agent.limits.metrics import limits_reached
from headrace.storage.counter_labels import from_zero
from headrace.storage.errors import CorruptError, DamagedError, HeadraceError, NotFoundError

log = logging.getLogger(__name__)


CountSent = Callable[[int, int, int], None]


class FetchMetrics:
    """One set per agent; its HTTP listener shows `registry`."""

    def __init__(self, registry: CollectorRegistry, count_sent: CountSent = lambda *_: None) -> None:
        self.count_sent = count_sent
        """Gets (partition key, bytes, records) of each partition of an answer (agent/cluster/topic_traffic.py)."""
        self.bytes = Counter("headrace_fetch_bytes_total", "Record bytes sent to consumers", registry=registry)
        self.waiting = Gauge("headrace_fetch_waiting", "Fetch requests that wait for data", registry=registry)
        self.primary_queries = Counter(
            "headrace_fetch_primary_queries_total", "Queries for extents sent to the metastore", registry=registry
        )
        errors = Counter(
            "headrace_fetch_storage_errors_total",
            "Partitions with unreadable data; alert on missing, corrupt and damaged",
            ["reason"],
            registry=registry,
        )
        self.storage_errors = from_zero(errors, ("missing", "corrupt", "damaged", "unavailable"))
        reads = Counter(
            "headrace_fetch_cache_reads_total", "Cache look-ups of byte ranges", ["result"], registry=registry
        )
        self.cache_hits = reads.labels("hit")
        self.cache_misses = reads.labels("miss")
        by_source = Counter(
            "headrace_fetch_read_bytes_total",
            "Bytes of segment files that were read, by source",
            ["source"],
            registry=registry,
        )
        self.read_from_memory = by_source.labels("memory")
        self.read_from_zone = by_source.labels("zone")
        self.read_from_store = by_source.labels("store")
        self.read_ahead = Counter(
            "headrace_fetch_read_ahead_bytes_total",
            "Bytes that were loaded before a sequential reader asked for them",
            registry=registry,
        )
        self.cache_bytes = Gauge("headrace_fetch_cache_bytes", "Bytes of segment files in the cache", registry=registry)
        polls = Counter("headrace_fetch_feed_polls_total", "Polls of the commit feed", ["result"], registry=registry)
        self.feed_polls = from_zero(polls, ("ok", "failed"))
        self.feed_lost_shards = Counter(
            "headrace_fetch_feed_lost_shards_total",
            "Shards with deleted feed rows that were not read",
            registry=registry,
        )
        self.feed_shards_followed = Gauge(
            "headrace_fetch_feed_followed_shards", "Commit shards of which this agent polls the feed", registry=registry
        )
        wanted = Gauge(
            "headrace_fetch_feed_wanted_shards",
            "Followed commit shards by reason; one may have several",
            ["reason"],
            registry=registry,
        )
        self.feed_shards_wanted = {reason: wanted.labels(reason) for reason in ("read", "committed", "assigned")}
        self.feed_shards_dropped = Counter(
            "headrace_fetch_feed_dropped_shards_total",
            "Commit shards that were followed until no reason was left",
            registry=registry,
        )
        self.sessions = Gauge("headrace_fetch_sessions", "Open incremental fetch sessions (KIP-227)", registry=registry)
        self.limits_reached = limits_reached(registry)

    def report_unreadable(self, partition_key: int, wanted: str, error: HeadraceError) -> None:
        """Count and log a partition with unreadable data; `wanted` is a field of the log line."""
        if isinstance(error, DamagedError):  # logged when it was found: a reader at damage asks again and again
            self.storage_errors.labels("damaged").inc()
            return
        reason = "unavailable"
        if isinstance(error, NotFoundError | CorruptError):
            reason = "missing" if isinstance(error, NotFoundError) else "corrupt"
        self.storage_errors.labels(reason).inc()
        log.error("read failed: reason=%s partition_key=%d %s error=%s", reason, partition_key, wanted, error)
