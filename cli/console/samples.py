"""Samples of a cluster, and the rates between two of them. Pure.

Place: sampler.py takes the samples; the charts, and the pages of topics and groups, show what is here.
Invariant: at most POINTS_MAX points are kept. A counter that fell started again at 0, as after a restart of its agent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.cli.client.offsets import TopicPartition
from headrace.cli.console.agent_metrics import AgentCounters, ClientUse, Pair, client_rates

POINTS_MAX = 720
"""An hour at 5 s."""
P99 = 0.99


@dataclass(frozen=True, slots=True)
class Sample:
    """What was read at one time. `at_ms` is wall time, `at` the monotonic time in seconds."""

    at_ms: int
    at: float
    ends: Mapping[TopicPartition, int]
    committed: Mapping[str, Mapping[TopicPartition, int]]
    """The committed offsets by group: those that it committed."""
    counters: Mapping[str, AgentCounters] = field(default_factory=dict)
    """The counters by agent; empty if no agent's HTTP address is known."""

    def lag(self, group: str, topic: str | None = None) -> int:
        """Offsets between committed and the end, of all partitions of the group, or those of one topic."""
        return sum(
            max(self.ends[place] - offset, 0)
            for place, offset in self.committed.get(group, {}).items()
            if place in self.ends and topic in (None, place[0])
        )


class Point(NamedTuple):
    """The time between two samples. Per second; None: unknown."""

    at_ms: int
    records: float
    produced_bytes: float | None
    fetched_bytes: float | None
    commit_p99_ms: float | None
    lag: int


class TopicRate(NamedTuple):
    """Rates of a topic per second, between the last two samples; None: unknown."""

    records: float
    received_bytes: float | None
    sent_bytes: float | None


class Samples:
    """The last two samples, and the points of all. For one thread that adds and others that read."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS_MAX)
        self.last: Sample | None = None
        self._rates: dict[str, TopicRate] = {}
        self.clients: dict[Pair, ClientUse] = {}
        """Uses per second between the last two samples."""

    def add(self, sample: Sample) -> None:
        """Samples are added in the order of their times."""
        before, self.last = self.last, sample
        if before is None or sample.at <= before.at:
            return
        self._rates = topic_rates(before, sample)
        pages = [
            (before.counters[a].by_client, now.by_client) for a, now in sample.counters.items() if a in before.counters
        ]
        self.clients = client_rates(pages, sample.at - before.at)
        self.points.append(point_between(before, sample))

    def rate(self, topic: str) -> TopicRate | None:
        """None before the second sample, and for a topic that was in neither."""
        return self._rates.get(topic)

    def since(self, at_ms: int) -> list[Point]:
        """The points at or after this time."""
        return [point for point in tuple(self.points) if point.at_ms >= at_ms]


def point_between(before: Sample, after: Sample) -> Point:
    """Rates of the whole cluster, and the lag at the later time."""
    seconds = after.at - before.at
    pairs = [(before.counters[agent], now) for agent, now in after.counters.items() if agent in before.counters]
    return Point(
        after.at_ms,
        sum(_grown(before.ends.get(place, end), end) for place, end in after.ends.items()) / seconds,
        sum(_grown(a.produced, b.produced) for a, b in pairs) / seconds if pairs else None,
        sum(_grown(a.fetched, b.fetched) for a, b in pairs) / seconds if pairs else None,
        _commit_p99_ms([(a.commits, b.commits) for a, b in pairs]),
        sum(after.lag(group) for group in after.committed),
    )


def topic_rates(before: Sample, after: Sample) -> dict[str, TopicRate]:
    """Return the topic rates by topic, of all that the later sample has."""
    seconds = after.at - before.at
    records: dict[str, float] = {}
    for place, end in after.ends.items():
        records[place[0]] = records.get(place[0], 0.0) + _grown(before.ends.get(place, end), end) / seconds
    pairs = [(before.counters[agent], now) for agent, now in after.counters.items() if agent in before.counters]
    received = _by_topic(((a.received_by_topic, b.received_by_topic) for a, b in pairs), seconds)
    sent = _by_topic(((a.sent_by_topic, b.sent_by_topic) for a, b in pairs), seconds)
    return {
        topic: TopicRate(rate, received.get(topic, 0.0) if pairs else None, sent.get(topic, 0.0) if pairs else None)
        for topic, rate in records.items()
    }


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return the quantile of a cumulative histogram by upper edge, as Prometheus' histogram_quantile; None without
    observations.
    """
    edges = sorted(buckets)
    total = buckets[edges[-1]] if edges else 0.0
    if total <= 0:
        return None
    wanted, low, below = share * total, 0.0, 0.0
    for edge in edges:
        if buckets[edge] >= wanted:
            if edge == float("inf"):
                return low
            inside = buckets[edge] - below
            return low + (edge - low) * ((wanted - below) / inside if inside else 1.0)
        low, below = edge, buckets[edge]
    return low


def _commit_p99_ms(pairs: list[tuple[Mapping[float, float], Mapping[float, float]]]) -> float | None:
    """Return the p99 in ms of the commits between the samples, of all agents."""
    buckets: dict[float, float] = {}
    for before, after in pairs:
        for edge, count in after.items():
            buckets[edge] = buckets.get(edge, 0.0) + _grown(before.get(edge, 0.0), count)
    seconds = quantile(buckets, P99)
    return None if seconds is None else seconds * 1000


def _by_topic(pairs: Iterable[tuple[Mapping[str, float], Mapping[str, float]]], seconds: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for before, after in pairs:
        for topic, count in after.items():
            found[topic] = found.get(topic, 0.0) + _grown(before.get(topic, 0.0), count) / seconds
    return found


def _grown(before: float, after: float) -> float:
    return after - before if after >= before else after
