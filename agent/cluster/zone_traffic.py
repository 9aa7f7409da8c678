"""Counts data bytes within this agent's zone and to other zones (W15).

Place: called by produce, fetch and the zone cache, once per request; /metrics shows it.
Invariant: every data byte exchanged with a client or another agent is counted once, as `same`,
`other` or `unknown` zone. While each zone has an agent and clients send their zone, `other` does not grow.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry, Counter

from headrace.agent.cluster.zone import zone_of
from headrace.protocol.request import Request, RequestHandler, Response


class Path(enum.StrEnum):
    """The purpose of the bytes."""

    PRODUCE = "produce"
    FETCH = "fetch"
    ZONE_CACHE = "zone_cache"


class ZoneTraffic:
    """One per agent. `own_zone` None: this agent has no zone to compare with."""

    def __init__(self, own_zone: str | None, registry: CollectorRegistry) -> None:
        self._own_zone = own_zone
        counter = Counter(
            "headrace_zone_traffic_bytes_total",
            "Data bytes exchanged with clients and other agents, by their zone: same, other or unknown",
            ["path", "zone"],
            registry=registry,
        )
        self._counters = {
            (path, zone): counter.labels(path.value, zone) for path in Path for zone in ("same", "other", "unknown")
        }

    def count(self, path: Path, zone: str | None, size_bytes: int) -> None:
        """`zone` of the other side; None if it sent none."""
        if zone is None or self._own_zone is None:
            self._counters[path, "unknown"].inc(size_bytes)
        else:
            self._counters[path, "same" if zone == self._own_zone else "other"].inc(size_bytes)

    def counted_produce(self, handle: RequestHandler) -> Callable[[Request], Awaitable[Response]]:
        """`handle`, with the bytes of each request counted by the zone in its client.id."""

        def handle_counted(request: Request) -> Awaitable[Response]:
            self.count(Path.PRODUCE, zone_of(request.client_id), len(request.body))
            return handle(request)

        return handle_counted
