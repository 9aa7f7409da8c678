"""Requests, bytes and records per user and client id, for /metrics, with or without quotas.

Place: counted by the listener for each request and each answer of a client, and by produce for the records of a
request. Quotas (enforcement.py) are charged with the same sizes, but only for clients that have one.
Invariant: at most `client.metrics.max` pairs have a separate label, those that use most (heavy_clients.py); all others
are one sum. 0: nothing is counted. Connections of other agents, and clients that have not authenticated where they
must, do not count; a request that another agent forwards counts there.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.agent.access.quotas.heavy_clients import CountedPair, HeavyClients
from headrace.protocol.request import ANONYMOUS, ClientConnection
from headrace.storage.client_text import SHOWN_CHARACTERS, shown

_LABELS = ["user", "client_id"]
_NOBODY = ANONYMOUS.partition(":")[2]


class ClientTraffic(Collector):
    """Client traffic of one agent. Counting runs on its event loop, `collect` on the HTTP listener's thread."""

    def __init__(self, pairs_max: int, registry: CollectorRegistry) -> None:
        self._heavy = HeavyClients(pairs_max)
        self.is_on = pairs_max > 0
        if self.is_on:
            registry.register(self)

    @property
    def in_use_bytes(self) -> int:
        """What is remembered of clients."""
        return self._heavy.in_use_bytes

    def sender(self, connection: ClientConnection, client_id: str | None, now: float) -> CountedPair | None:
        """Return what counts the requests of this connection with this client id, for about a second: later the pair
        may have been forgotten. None: they do not count.
        """
        if connection.is_link or connection.is_agent or not connection.is_known:
            return None
        user = _NOBODY if connection.principal is None else connection.principal.partition(":")[2]
        if len(user) > SHOWN_CHARACTERS:
            user = shown(user)
        if client_id is None:
            client_id = ""
        elif len(client_id) > SHOWN_CHARACTERS:
            client_id = shown(client_id)
        return self._heavy.client((user, client_id), now)

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus-client for every scrape."""
        requests = CounterMetricFamily("headrace_client_requests", "Requests of a user and client id.", labels=_LABELS)
        received = CounterMetricFamily(
            "headrace_client_received_bytes", "Bytes of the requests of a user and client id.", labels=_LABELS
        )
        records = CounterMetricFamily(
            "headrace_client_received_records",
            "Records in its Produce requests that passed the checks, repeated ones again.",
            labels=_LABELS,
        )
        sent = CounterMetricFamily(
            "headrace_client_sent_bytes", "Bytes of the answers to a user and client id.", labels=_LABELS
        )
        for counts in (*self._heavy.named, self._heavy.others):
            requests.add_metric(counts.pair, counts.requests)
            received.add_metric(counts.pair, counts.received_bytes)
            records.add_metric(counts.pair, counts.received_records)
            sent.add_metric(counts.pair, counts.sent_bytes)
        yield from (requests, received, records, sent)
