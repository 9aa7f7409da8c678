"""Measures the delay of the event loop: the first metric to look at if everything is slow.

Place: one task per agent on its event loop.
Invariant: changes only its metric. A histogram: a scrape sees the delays since the previous one, also short ones, and
not only the one before it.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram

from headrace.storage.clock import Clock

INTERVAL_SECONDS = 0.5


def loop_lag(registry: CollectorRegistry) -> Histogram:
    """Declare the metric; once per process, also if the loop below is started again."""
    return Histogram(
        "headrace_event_loop_lag_seconds",
        "How late the event loop woke a sleeping task, twice a second",
        buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2),
        registry=registry,
    )


async def watch_loop_lag(clock: Clock, lag: Histogram) -> None:
    """Measure until cancelled how much later than requested a sleep returns."""
    while True:
        asked = clock.monotonic()
        await clock.sleep(INTERVAL_SECONDS)
        lag.observe(max(0.0, clock.monotonic() - asked - INTERVAL_SECONDS))
