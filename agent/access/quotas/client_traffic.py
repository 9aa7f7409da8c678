"""Requests, bytes, records per pair of user with client id, for /metrics, with or without quotas.

    pair        a user and a client id: what quotas are set for
    named       a pair with separate counts
    candidate   a pair without: it counts with the others, and may be named later
    weight      what a pair used lately: bytes, and REQUEST_WEIGHT for each request; halved every HALF_LIFE_SECONDS

Place: counted by the listener for each request and each answer of a client, and by produce for the records of a
request. Quotas (enforcement.py) are charged with the same sizes, but only for clients that have one. HeavyClients
finds which clients use most, also if clients invent names; it is pure: times come in.
Invariant: at most `client.metrics.max` pairs are named and CANDIDATES_MAX are candidates, and their names use at
most MEMORY_BYTES; all others are one sum. 0: nothing is counted. Connections of other agents, and clients that have
not authenticated where they must, do not count; a request that another agent forwards counts there. The sum over all
counts is complete, and no count falls while its pair is named.
New pairs are named while there is room. After that a candidate takes a name over only if it was seen for
SEEN_SECONDS and used twice as much lately as the named pair with the least; at most CHANGES_MAX names change per
LOOK_SECONDS. So names that are used once take no name from a pair in use, and Prometheus gets few new series.
Source: Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams" (2005):
a new candidate in the place of the lightest one inherits its weight as a possible error. A pair with more than one
CANDIDATES_MAX-th of the weight of all candidates is always among them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.agent.limits.client_memory import ENTRY_BYTES, text_bytes
from headrace.config.memory_budget import REMEMBERED_BYTES
from headrace.protocol.request import ANONYMOUS, ClientConnection
from headrace.storage.client_text import SHOWN_CHARACTERS, shown

CANDIDATES_MAX = 500
MEMORY_BYTES = REMEMBERED_BYTES["client_traffic"]
REQUEST_WEIGHT = 1024
"""A request costs an agent about as much as this number of bytes."""
HALF_LIFE_SECONDS = 60.0
LOOK_SECONDS = 10.0
SEEN_SECONDS = 30.0
CHANGES_MAX = 2
_TIMES_MORE = 2.0
_SCALE_MAX = 2.0**40

Pair = tuple[str, str]
"""User and client id, as long as they are shown."""
OTHERS: Pair = ("", "")
"""The name of the sum of all pairs that are not named: no user has an empty name."""


class PairCounts:
    """Counts of one pair since it was named, or of all others."""

    __slots__ = ("pair", "received_bytes", "received_records", "requests", "sent_bytes")

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.requests = self.received_bytes = self.received_records = self.sent_bytes = 0

    def add(self, other: PairCounts) -> None:
        """Count what the other has, too."""
        self.requests += other.requests
        self.received_bytes += other.received_bytes
        self.received_records += other.received_records
        self.sent_bytes += other.sent_bytes


class _Scale:
    """How much one byte weighs now."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 1.0


class CountedPair:
    """One pair. It counts while a request of it is in progress, also if it was forgotten meanwhile."""

    __slots__ = ("_scale", "counts", "error", "pair", "seen_at", "weight")

    def __init__(self, pair: Pair, counts: PairCounts, scale: _Scale, error: float, now: float) -> None:
        """`error`: how much of its weight may be of others."""
        self.pair, self.counts, self.seen_at = pair, counts, now
        self.weight = self.error = error
        self._scale = scale

    @property
    def certain_weight(self) -> float:
        """What it used for certain."""
        return self.weight - self.error

    def sent_request(self, size_bytes: int) -> None:
        """The pair sent a request of this size."""
        counts = self.counts
        counts.requests += 1
        counts.received_bytes += size_bytes
        self.weight += (size_bytes + REQUEST_WEIGHT) * self._scale.now

    def sent_records(self, records: int) -> None:
        """The request had so many records."""
        self.counts.received_records += records

    def got_answer(self, size_bytes: int) -> None:
        """An answer of this size was made for the pair."""
        self.counts.sent_bytes += size_bytes
        self.weight += size_bytes * self._scale.now


class HeavyClients:
    """The pairs of one agent, for its event loop. `named` may be read by other threads: it is replaced, not changed."""

    def __init__(self, named_max: int, memory_bytes: int = MEMORY_BYTES) -> None:
        self._named_max, self._memory_bytes = named_max, memory_bytes
        self.others = PairCounts(OTHERS)
        self.named: tuple[PairCounts, ...] = ()
        self.in_use_bytes = 0
        self._clients: dict[Pair, CountedPair] = {}
        self._candidates = 0
        self._lightest: list[tuple[float, int, CountedPair]] = []
        """A heap of the candidates by the weight that they had at least."""
        self._serial = itertools.count()
        self._scale = _Scale()
        self._scaled_at = self._looked_at = 0.0

    def __len__(self) -> int:
        return len(self._clients)

    def client(self, pair: Pair, now: float) -> CountedPair:
        """Return the pair's client, a new one if it is not known."""
        if now - self._looked_at >= LOOK_SECONDS:
            self._look(now)
        return self._clients.get(pair) or self._add(pair, now)

    def _add(self, pair: Pair, now: float) -> CountedPair:
        size, error = _size(pair), 0.0
        if len(self.named) < self._named_max and self.in_use_bytes + size <= self._memory_bytes:
            client = CountedPair(pair, PairCounts(pair), self._scale, error, now)
            self.named = (*self.named, client.counts)
        else:
            while self._candidates and (
                self._candidates >= CANDIDATES_MAX or self.in_use_bytes + size > self._memory_bytes
            ):
                error = self._forget_lightest()
            client = CountedPair(pair, self.others, self._scale, error, now)
            if self.in_use_bytes + size > self._memory_bytes:
                return client
            self._candidates += 1
            heapq.heappush(self._lightest, (client.weight, next(self._serial), client))
        self._clients[pair] = client
        self.in_use_bytes += size
        return client

    def _forget_lightest(self) -> float:
        """Forget the candidate with the least weight; that weight."""
        while True:
            weight, serial, client = self._lightest[0]
            if weight < client.weight:
                heapq.heapreplace(self._lightest, (client.weight, serial, client))
                continue
            heapq.heappop(self._lightest)
            self._candidates -= 1
            del self._clients[client.pair]
            self.in_use_bytes -= _size(client.pair)
            return client.weight

    def _look(self, now: float) -> None:
        """Let weights age, and give names to candidates that use more than named pairs."""
        self._looked_at = now
        self._scale.now = 2.0 ** ((now - self._scaled_at) / HALF_LIFE_SECONDS)
        if self._scale.now > _SCALE_MAX:
            self._rescale(now)
        if not self._candidates:
            return
        named = heapq.nsmallest(CHANGES_MAX, (c for c in self._clients.values() if self._is_named(c)), key=_weight)
        seen = (c for c in self._clients.values() if not self._is_named(c) and now - c.seen_at >= SEEN_SECONDS)
        candidates = heapq.nlargest(CHANGES_MAX, seen, key=_certain_weight)
        changed = False
        for light, heavy in zip(named, candidates, strict=False):
            if heavy.certain_weight > _TIMES_MORE * light.certain_weight:
                self._exchange(light, heavy)
                changed = True
        if changed:
            self._pile_up()

    def _exchange(self, named: CountedPair, candidate: CountedPair) -> None:
        """The candidate takes the name over; the other pair is a candidate from now on."""
        old, candidate.counts = named.counts, PairCounts(candidate.pair)
        self.named = (*(counts for counts in self.named if counts is not old), candidate.counts)
        self.others.add(old)
        named.counts = self.others

    def _rescale(self, now: float) -> None:
        """Make all weights small again. Weights of another order of magnitude become 0."""
        for client in self._clients.values():
            client.weight /= self._scale.now
            client.error /= self._scale.now
        self._scale.now, self._scaled_at = 1.0, now
        self._pile_up()

    def _pile_up(self) -> None:
        candidates = (client for client in self._clients.values() if not self._is_named(client))
        self._lightest = [(client.weight, next(self._serial), client) for client in candidates]
        heapq.heapify(self._lightest)

    def _is_named(self, client: CountedPair) -> bool:
        return client.counts is not self.others


def _size(pair: Pair) -> int:
    """Return the memory of a pair, its counts and its places in the containers."""
    return 3 * ENTRY_BYTES + text_bytes(*pair)


def _weight(client: CountedPair) -> float:
    return client.weight


def _certain_weight(client: CountedPair) -> float:
    return client.certain_weight


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
