"""Measures the delay of the event loop: the first metric to look at if everything is slow.

Place: one task per agent on its event loop.
Invariant: changes only its metric.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from headrace.storage.clock import Clock

INTERVAL_SECONDS = 0.5


async def watch_loop_lag(clock: Clock, registry: CollectorRegistry) -> None:
    """Measure until cancelled how much later than requested a sleep returns."""
    gauge = Gauge(
        "headrace_event_loop_lag_seconds",
        "How late the event loop woke a sleeping task, last measurement",
        registry=registry,
    )
    while True:
        asked = clock.monotonic()
        await clock.sleep(INTERVAL_SECONDS)
        gauge.set(max(0.0, clock.monotonic() - asked - INTERVAL_SECONDS))
