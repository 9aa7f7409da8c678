"""One counter of all limits on what clients may use.

Place: used by the listener, the groups, the fetch sessions and the topics; read by /metrics.
Invariant: the label is the name of the setting that sets the limit, so an operator knows what to change.
"""

from __future__ import annotations

import weakref

from prometheus_client import CollectorRegistry, Counter

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
