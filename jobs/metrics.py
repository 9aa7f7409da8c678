"""Metrics of the job loop.

Place: used by jobs/runner.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.storage.clock import Clock

SECONDS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)


@dataclass
class JobOutcome:
    """The result of a job in this process: done, failed, released, lost."""

    name: str = "lost"


class JobMetrics:
    """One set per process with the role compactor."""

    def __init__(self, clock: Clock, registry: CollectorRegistry) -> None:
        self._clock = clock
        self._running = Gauge("headrace_jobs_running", "Jobs running in this process", ["kind"], registry=registry)
        self._ended = Counter(
            "headrace_jobs_ended",
            "Jobs that ended in this process: done, failed, released (it stopped) or lost to another worker",
            ["kind", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "headrace_job_seconds",
            "Duration of a job in this process, for every result",
            ["kind"],
            buckets=SECONDS,
            registry=registry,
        )

    @contextmanager
    def running(self, kind: str) -> Iterator[JobOutcome]:
        """Measure a job; the caller sets the result."""
        outcome, began = JobOutcome(), self._clock.monotonic()
        self._running.labels(kind).inc()
        try:
            yield outcome
        finally:
            self._running.labels(kind).dec()
            self._ended.labels(kind, outcome.name).inc()
            self._seconds.labels(kind).observe(self._clock.monotonic() - began)
