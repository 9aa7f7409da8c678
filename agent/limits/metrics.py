"""The metrics of what limits allow: memory by part, requests that met a limit.

Place: every part counts where it is used. paths.py shows the memory of the parts of an agent, cli/process/shell.py
that of every process; it is read when Prometheus asks.
Invariant: one counter has all limits on what clients may use; its label is the name of the setting that sets the
limit, so an operator knows what to change. The label `part` is one of config/memory_budget.py's. `python` and
`compaction` have a limit only: nothing counts their bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.config.memory_budget import memory_budget
from headrace.config.settings import Settings

Used = Callable[[], float]
"""Bytes in use now."""

_used: weakref.WeakKeyDictionary[CollectorRegistry, Gauge] = weakref.WeakKeyDictionary()


def watch_memory(settings: Settings, parts: Mapping[str, Used], registry: CollectorRegistry) -> None:
    """Show these parts, and all limits. Each part of a registry is watched once."""
    used, budget = _used.get(registry), memory_budget(settings)
    if used is None:
        used = _used[registry] = _with_limits(budget, registry)
    for part, in_use in parts.items():
        assert part in budget, part
        used.labels(part).set_function(in_use)


def _with_limits(budget: Mapping[str, int], registry: CollectorRegistry) -> Gauge:
    limit = Gauge(
        "headrace_memory_limit_bytes",
        "Bytes that the settings allow, by part; the sum is the budget of the process (LIMITS.md)",
        ["part"],
        registry=registry,
    )
    for part, size in budget.items():
        limit.labels(part).set(size)
    return Gauge("headrace_memory_bytes", "Bytes in use, by part of the memory budget", ["part"], registry=registry)


_counters: weakref.WeakKeyDictionary[CollectorRegistry, Counter] = weakref.WeakKeyDictionary()


def limits_reached(registry: CollectorRegistry) -> Counter:
    """The registry's counter, with the label `limit`."""
    counter = _counters.get(registry)
    if counter is None:
        counter = _counters[registry] = Counter(
            "headrace_limit_reached",
            "Requests and connections that were refused, by the setting that limits them.",
            ["limit"],
            registry=registry,
        )
    return counter
