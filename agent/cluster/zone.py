"""The zones of clients, with a count of the data bytes within a zone or between zones (W15).

Place: a client's zone is from its client.id: Metadata directs producers to an agent of their zone; Fetch also has
the consumer's rack. ZoneTraffic is called by produce, fetch and the zone cache, once per request; /metrics shows it.
Invariant: every data byte exchanged with a client or another agent is counted once, as `same`,
`other` or `unknown` zone. While each zone has an agent and clients send their zone, `other` does not grow.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry, Counter

from headrace.agent.limits.client_memory import ClientMemory, text_bytes
from headrace.config.memory_budget import REMEMBERED_BYTES
from headrace.protocol.request import Request, RequestHandler, Response

_ELEMENT = "zone="
_NO_ZONE = ""
_CLIENT_ID_BYTES = 2_048
"""A longer client id is read again for each request."""

remembered: ClientMemory[str | None, str] = ClientMemory(
    REMEMBERED_BYTES["client_zones"], lambda client_id, zone: text_bytes(client_id, zone), _CLIENT_ID_BYTES
)
"""The zones of client ids, of all agents of the process."""


def zone_of(client_id: str | None) -> str | None:
    """The zone in a client.id such as `orders-7,zone=eu-west-1a`: elements are separated by commas.

    None if there is no such element; the first of several.
    """
    zone = remembered.get(client_id)
    if zone is None:
        zone = _find(client_id) or _NO_ZONE
        remembered.put(client_id, zone)
    return zone or None


def _find(client_id: str | None) -> str | None:
    for element in (client_id or "").split(","):
        name = element.strip()
        if name.startswith(_ELEMENT) and len(name) > len(_ELEMENT):
            return name.removeprefix(_ELEMENT)
    return None


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
