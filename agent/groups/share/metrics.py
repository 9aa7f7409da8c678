"""What an agent counts of its share groups, for Prometheus.

Place: written by owner.py, group_partitions.py and the groups; read by the HTTP listener, on its thread.
Invariant: neither groups nor topics are labels: a group is counted by the one agent that holds it, and sums over agents
are right. Kafka has these of each group and partition (ShareGroupMetrics, SharePartitionMetrics); each text names it.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from headrace.agent.groups.share.in_flight import AckBatch, AckType
from headrace.agent.groups.share.share_partition import Acquired, SharePartition, ShareTally
from headrace.storage.counter_labels import from_zero

SECONDS_BUCKETS = (0.005, 0.025, 0.1, 0.5, 5.0)


class _InFlight(Collector):
    """Counted when metrics are read."""

    def __init__(self, partitions: Callable[[], list[SharePartition]], tally: ShareTally) -> None:
        self._partitions, self._tally = partitions, tally

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        partitions = self._partitions()
        yield GaugeMetricFamily(
            "headrace_share_in_flight_records",
            "Records from the start offsets of share groups to the last ones that were acquired; Kafka's"
            " InFlightMessageCount",
            value=sum(each.end - each.start for each in partitions),
        )
        yield GaugeMetricFamily(
            "headrace_share_in_flight_ranges",
            "Ranges of these records with the same state, member and number of attempts; Kafka's InFlightBatchCount",
            value=sum(len(each.ranges) for each in partitions),
        )
        yield CounterMetricFamily(
            "headrace_share_lock_timeouts",
            "Records that were not acknowledged before their lock ended; Kafka's AcquisitionLockTimeoutPerSec",
            value=self._tally.timed_out,
        )
        yield CounterMetricFamily(
            "headrace_share_used_up_records",
            "Records that are not delivered again because their attempts are used up (share.delivery.count.limit)",
            value=self._tally.used_up,
        )


class ShareMetrics:
    """One set per agent."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.tally = ShareTally()
        """What the partitions count."""
        acknowledged = Counter(
            "headrace_share_acknowledged_records_total",
            "Records of acknowledgements that were applied, by type; Kafka's RecordAcknowledgementsPerSec",
            ["type"],
            registry=registry,
        )
        self._acknowledged = from_zero(acknowledged, tuple(kind.name.lower() for kind in AckType))
        self.acquired = Counter(
            "headrace_share_acquired_records_total", "Records that members of share groups acquired", registry=registry
        )
        partitions = Counter(
            "headrace_share_fetch_partitions_total",
            "Partitions for which members asked; Kafka's RequestTopicPartitionsFetchRatio is the part with `acquired`",
            ["result"],
            registry=registry,
        )
        self.fetch_partitions = from_zero(partitions, ("acquired", "nothing"))
        self.acquire_seconds = Histogram(
            "headrace_share_acquire_seconds",
            "Time until a ShareFetch acquired records, waits included; Kafka's TopicPartitionsAcquireTimeMs",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.load_seconds = Histogram(
            "headrace_share_load_seconds",
            "Time to read the partitions of a share group that this agent took over; Kafka's PartitionLoadTimeMs",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.store_seconds = Histogram(
            "headrace_share_store_seconds",
            "Time to store what changed in a share group's partitions, repetitions not included; Kafka's write-latency"
            " of the share coordinator",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.rebalances = Counter(
            "headrace_share_group_rebalances_total",
            "New assignments of share groups; Kafka's share-group-rebalance-count",
            registry=registry,
        )

    def watch(self, partitions: Callable[[], list[SharePartition]]) -> None:
        """Show what is in flight; `partitions` is called on the HTTP listener's thread."""
        self._registry.register(_InFlight(partitions, self.tally))

    def acknowledge(self, batches: list[AckBatch]) -> None:
        """Count acknowledgements that were applied."""
        counts: Tally[int] = Tally()
        for batch in batches:
            if len(batch.types) == 1:
                counts[batch.types[0]] += batch.last - batch.first + 1
            else:
                counts.update(batch.types)
        for kind, count in counts.items():
            self._acknowledged.labels(AckType(kind).name.lower()).inc(count)

    def acquire(self, asked: int, acquired: Iterable[Sequence[Acquired]], seconds: float) -> None:
        """Count a fetch: of how many partitions, what was acquired there, after how long."""
        found = [sum(each.last - each.first + 1 for each in ranges) for ranges in acquired]
        self.fetch_partitions.labels("acquired").inc(len(found))
        self.fetch_partitions.labels("nothing").inc(asked - len(found))
        if found:
            self.acquired.inc(sum(found))
            self.acquire_seconds.observe(seconds)
