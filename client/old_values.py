"""Decide which partitions may still hold old values of a key, on compacted topics that have grown (P9).

Place: asked by producer.py before it queues a record with a key.
A value that was written before the topic grew is in the partition that the new one was split off, where no later record
of the key arrives: compaction there would keep it without end. So the producer sends a null for the key there as well,
with the header MOVED_HEADER, which headrace.client's consumer does not deliver. Other consumers take it for a deletion.
Invariant: a partition is left out only once its earliest offset has passed the threshold.
Source: KIP-253, change 9, with the condition that promise P9 states.
"""

from __future__ import annotations

from headrace.client.cluster import ClientCluster
from headrace.client.offsets import EARLIEST, epoch_ends, log_offsets, partition_epochs
from headrace.protocol.partition_counts import TopicCounts

MOVED_HEADER = "headrace.moved"
KEYS_MAX = 100_000


class OldValues:
    """Places of old values of one topic, as of one partition count; a null is sent once per key, since later values
    are not old there.
    """

    def __init__(self, cluster: ClientCluster, topic: str, counts: TopicCounts) -> None:
        self._cluster, self._topic, self.counts = cluster, topic, counts
        self._holders: dict[int, tuple[int, ...]] = {}
        self._done: dict[tuple[int, bytes], None] = {}

    def concern(self, partition: int) -> bool:
        """Return whether keys of this partition can have old values elsewhere."""
        counts = self.counts
        return counts.is_compacted and counts.is_ordered and partition >= counts.initial

    async def holders(self, partition: int) -> tuple[int, ...]:
        """The partitions that it was split off, one after another, as far as they may have records from before."""
        if partition not in self._holders:
            self._holders[partition] = await self._ask(partition)
        return self._holders[partition]

    def is_first(self, partition: int, key: bytes) -> bool:
        """Return whether the key's nulls are not sent yet; from now on they are. KEYS_MAX keys are remembered."""
        if (partition, key) in self._done:
            return False
        while len(self._done) >= KEYS_MAX:
            del self._done[next(iter(self._done))]
        self._done[partition, key] = None
        return True

    async def _ask(self, partition: int) -> tuple[int, ...]:
        found = []
        while partition >= self.counts.initial:
            created = (await partition_epochs(self._cluster, [(self._topic, partition)]))[self._topic, partition]
            if created.source < 0:
                break
            source = self._topic, created.source
            asked = *source, created.after_creation
            threshold = (await epoch_ends(self._cluster, [asked]))[asked]
            if (await log_offsets(self._cluster, [source], EARLIEST))[source] < threshold:
                found.append(created.source)
            partition = created.source
        return tuple(found)
