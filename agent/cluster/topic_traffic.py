"""Bytes and records in and out per topic, for /metrics: Kafka's BytesInPerSec, MessagesInPerSec and BytesOutPerSec.

Place: counted by produce for each committed batch, and by fetch for each partition of an answer.
Invariant: at most `topic.metrics.max` topics have a separate label, also if clients create more; all further ones are
summed as OTHER_TOPICS. A topic keeps its label while it exists, so that no counter falls. 0: nothing is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.metastore.keys import PARTITION_BITS

OTHER_TOPICS = "other topics"
"""No topic has this name: Kafka allows no space."""


class _Counts:
    """Counts of one topic at this agent."""

    __slots__ = ("name", "received_bytes", "received_records", "sent_bytes", "sent_records")

    def __init__(self, name: str) -> None:
        self.name = name
        self.received_bytes = self.received_records = self.sent_bytes = self.sent_records = 0


class TopicTraffic(Collector):
    """Topic traffic of one agent. Counting runs on its event loop, `collect` on the HTTP listener's thread."""

    def __init__(self, topics_max: int, topic_name: Callable[[int], str | None], registry: CollectorRegistry) -> None:
        """`topic_name`: of a topic number; None if there is no such topic."""
        self._topics_max = topics_max
        self._topic_name = topic_name
        self._topics: dict[int, _Counts] = {}
        """By topic number, of every topic that was seen."""
        self._labelled: list[_Counts] = []
        self._others = _Counts(OTHER_TOPICS)
        if topics_max:
            registry.register(self)

    def received(self, partition_key: int, size_bytes: int, records: int) -> None:
        """Batches of a producer were committed; the size is what is stored, the records are counted by their
        offsets."""
        counts = self._topics.get(partition_key >> PARTITION_BITS) or self._add(partition_key)
        counts.received_bytes += size_bytes
        counts.received_records += records

    def sent(self, partition_key: int, size_bytes: int, records: int) -> None:
        """Batches go to a consumer; records are counted by their offsets, also those that the consumer skips."""
        counts = self._topics.get(partition_key >> PARTITION_BITS) or self._add(partition_key)
        counts.sent_bytes += size_bytes
        counts.sent_records += records

    def _add(self, partition_key: int) -> _Counts:
        """The counts of a topic that was not seen before: its own while there is room. Deleted topics make room."""
        number = partition_key >> PARTITION_BITS
        name = self._topic_name(number) if self._topics_max else None
        if name is None:
            return self._others
        if len(self._labelled) >= self._topics_max:
            self._topics = {n: counts for n, counts in self._topics.items() if self._topic_name(n) is not None}
            # a new list, because the HTTP listener's thread may be reading the old one
            self._labelled = [counts for counts in self._topics.values() if counts is not self._others]
        counts = self._others
        if len(self._labelled) < self._topics_max:
            counts = _Counts(name)
            self._labelled.append(counts)
        self._topics[number] = counts
        return counts

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus-client for every scrape."""
        received_bytes = CounterMetricFamily(
            "headrace_topic_received_bytes", "Bytes of batches that were committed (BytesInPerSec)", labels=["topic"]
        )
        received_records = CounterMetricFamily(
            "headrace_topic_received_records", "Records that were committed (MessagesInPerSec)", labels=["topic"]
        )
        sent_bytes = CounterMetricFamily(
            "headrace_topic_sent_bytes", "Bytes of batches that were sent to consumers (BytesOutPerSec)",
            labels=["topic"],
        )  # fmt: skip
        sent_records = CounterMetricFamily(
            "headrace_topic_sent_records", "Records that were sent to consumers", labels=["topic"]
        )
        for counts in (*self._labelled, self._others):
            received_bytes.add_metric([counts.name], counts.received_bytes)
            received_records.add_metric([counts.name], counts.received_records)
            sent_bytes.add_metric([counts.name], counts.sent_bytes)
            sent_records.add_metric([counts.name], counts.sent_records)
        yield from (received_bytes, received_records, sent_bytes, sent_records)
