"""What the write path counts, for Prometheus.

Place: written by every file of agent/produce, read by the HTTP listener.
Invariant: counted per file or per call, never in an extra loop over batches; a label has few values. Topics are a label
only where few can be: those that doubled, at most TOPICS_SHOWN. Partitions never are.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.agent.cluster.topic_traffic import OTHER_TOPICS
from headrace.agent.produce.files import FileTrace, FlushReason
from headrace.agent.produce.flush_policy import FlushPolicy, dollars_per_month
from headrace.agent.produce.inline_policy import InlinePolicy, InlineReason
from headrace.agent.produce.requests import Refusal
from headrace.storage.clock import Clock
from headrace.storage.counter_labels import from_zero

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


TOPICS_SHOWN = 100
"""Number of topics shown, of those with refused moved keys; all further ones are counted as one."""


class ProduceMetrics:
    """One set per agent; `registry` is what its HTTP listener shows."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.buffer_seconds = Histogram(
            "headrace_produce_buffer_seconds",
            "From a segment file's first batch to its flush",
            buckets=_SECONDS,
            registry=registry,
        )
        self.put_seconds = Histogram(
            "headrace_produce_put_seconds",
            "One segment file's upload, the store's own retries included",
            buckets=_SECONDS,
            registry=registry,
        )
        self.commit_seconds = Histogram(
            "headrace_produce_commit_seconds", "One commit call that was answered", buckets=_SECONDS, registry=registry
        )
        self.commit_files = Histogram(
            "headrace_produce_commit_files",
            "Segment files in one commit call",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=registry,
        )
        failures = Counter(
            "headrace_produce_commit_failures_total", "Commit calls without an answer", ["error"], registry=registry
        )
        self.commit_failures = from_zero(failures, ("UnavailableError", "OutcomeUnknownError", "FencedError"))
        flushes = Counter("headrace_produce_flushes_total", "Buffers closed, by reason", ["reason"], registry=registry)
        self.flushes = from_zero(flushes, FlushReason)
        self.files_in_flight = Gauge(
            "headrace_produce_files_in_flight", "Segment files flushed and not settled", registry=registry
        )
        self.early_flush_dollars = Gauge(
            "headrace_early_flush_dollars_per_month",
            "Price of a month of early flushes at the rate of the last minute, on S3 Standard; 0 on a directory",
            registry=registry,
        )
        self.early_flushes_saved = Gauge(
            "headrace_early_flushes_saved",
            "Early flushes that the agent may make from what it saved; +Inf if they are unlimited",
            registry=registry,
        )
        self.early_flush_rate_limit = Gauge(
            "headrace_early_flush_rate_limit",
            "Highest number of early flushes per second; lower while commits are slow; +Inf if they are unlimited",
            registry=registry,
        )
        files = Counter(
            "headrace_produce_files_total", "Segment files settled: committed or not", ["result"], registry=registry
        )
        self.files = from_zero(files, ("committed", "failed"))
        self.batches = Counter("headrace_produce_batches_total", "Batches that were appended", registry=registry)
        self.bytes = Counter("headrace_produce_bytes_total", "Bytes of batches that were flushed", registry=registry)
        self.duplicates = Counter(
            "headrace_produce_duplicates_total", "Batches dropped at commit as duplicates", registry=registry
        )
        self._count_refusals(registry)
        self._count_inline(registry)
        self.timed_out = Counter(
            "headrace_produce_timed_out_total", "Requests answered by their deadline", registry=registry
        )

    def _count_refusals(self, registry: CollectorRegistry) -> None:
        """Declare what is counted of batches that are answered with an error."""
        self.refused = Counter(
            "headrace_produce_refused_total", "Batches answered with an error", ["error"], registry=registry
        )
        self._refused_by_code: dict[int, Counter] = {}
        self.moved_keys = Counter(
            "headrace_moved_keys_refused_total",
            "Batches that were refused finally, because their topic doubled and they came with a moved key for the"
            " parent too late",
            ["topic"],
            registry=registry,
        )
        self._topics_shown: set[str] = set()

    def _count_inline(self, registry: CollectorRegistry) -> None:
        """Declare what is counted of small files."""
        self.inline_bytes = Counter(
            "headrace_produce_inline_bytes_total",
            "Bytes of files that went into the metastore with their commit",
            registry=registry,
        )
        not_inline = Counter(
            "headrace_produce_not_inline_total",
            "Requests for topics with low.latency.enable that went into the bucket at once, by reason",
            ["reason"],
            registry=registry,
        )
        self.not_inline = from_zero(not_inline, InlineReason)
        self._inline_held = Gauge(
            "headrace_inline_held_bytes",
            "Bytes of small files that are in the metastore, as this agent saw it last; 0: none, or not seen",
            registry=registry,
        )
        self._inline_oldest = Gauge(
            "headrace_inline_oldest_seconds",
            "Age of the oldest small file in the metastore, as this agent saw it last; it grows while none is moved",
            registry=registry,
        )

    def show_early_flushes(self, policy: FlushPolicy, clock: Clock, *, are_paid: bool) -> None:
        """Read the budget of early flushes from now on."""

        def dollars() -> float:
            return dollars_per_month(policy.early_per_second(clock.monotonic())) if are_paid else 0.0

        self.early_flush_dollars.set_function(dollars)
        self.early_flushes_saved.set_function(lambda: policy.budget.saved(clock.monotonic()))
        self.early_flush_rate_limit.set_function(lambda: policy.budget.rate_limit)

    def show_inline(self, policy: InlinePolicy) -> None:
        """Show what is in the metastore from now on."""
        self._inline_held.set_function(lambda: policy.held_bytes)
        self._inline_oldest.set_function(lambda: policy.oldest_s)

    def count_refused(self, refusal: Refusal, batches: int = 1) -> None:
        """Batches got this error. A request may have thousands, and a label costs more than a count."""
        counter = self._refused_by_code.get(refusal.code)
        if counter is None:
            counter = self._refused_by_code[refusal.code] = self.refused.labels(refusal.name)
        counter.inc(batches)

    def count_moved_keys(self, topic: str) -> None:
        """A batch was refused for its moved key."""
        if len(self._topics_shown) < TOPICS_SHOWN:
            self._topics_shown.add(topic)
        self.moved_keys.labels(topic if topic in self._topics_shown else OTHER_TOPICS).inc()

    def flushed(self, trace: FileTrace) -> None:
        """A buffer was closed."""
        self.flushes.labels(trace.reason.value).inc()
        self.buffer_seconds.observe(trace.closed_at - trace.opened_at)
        self.bytes.inc(trace.size_bytes)
        self.files_in_flight.inc()

    def settled(self, trace: FileTrace) -> None:
        """Every batch of a file has its answer."""
        self.files.labels("committed" if trace.is_committed else "failed").inc()
        self.files_in_flight.dec()
