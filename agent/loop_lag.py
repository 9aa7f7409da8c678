"""How late the event loop is: the first thing to look at when everything is slow.

Place: one task per agent, beside everything else on its loop.
Invariant: reads nothing and changes nothing but its metric.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from headrace.storage.clock import Clock

INTERVAL_SECONDS = 0.5


async def watch_loop_lag(clock: Clock, registry: CollectorRegistry) -> None:
    """Measure for ever how much later than asked a sleep returns."""
    gauge = Gauge(
        "headrace_event_loop_lag_seconds", "How late the event loop woke a sleeper, last look", registry=registry
    )
    while True:
        asked = clock.monotonic()
        await clock.sleep(INTERVAL_SECONDS)
        gauge.set(max(0.0, clock.monotonic() - asked - INTERVAL_SECONDS))
