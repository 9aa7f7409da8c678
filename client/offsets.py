"""Questions about partitions: where logs start or end, where an epoch ends, what a partition was created from.

Place: asked by the consumer before it waits or begins, and by producer.py before it queues a record with a key, for
partitions that may still hold old values of it on compacted topics that have grown (P9). Any agent answers.
Invariant: an answer is complete: UnavailableError if a partition is missing or has an error, and the caller asks
again.
Source: KIP-253; KIP-320 (OffsetForLeaderEpoch), Kafka's ListOffsetsRequest.json.
A value that was written before the topic grew is in the partition that the new one was split off, where no later
record of the key arrives: compaction there would keep it without end. So the producer sends a null for the key there
as well, with the header MOVED_HEADER, which headrace.client's consumer does not deliver. Other consumers take it for
a deletion.
Invariant of old values: a partition is left out only once its earliest offset has passed the threshold.
Source: KIP-253, change 9, with the condition that promise P9 states.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from headrace.client.cluster import ClientCluster
from headrace.client.messages import Frame, message
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.ordered_requests import (
    LEADER_EPOCHS_KEY,
    VERSION,
    PartitionEpochs,
    decode_epochs_response,
    encode_epochs_request,
)
from headrace.protocol.partition_counts import TopicCounts
from headrace.storage.errors import UnavailableError

EARLIEST, LATEST = -2, -1
_CONSUMER = -1
T = TypeVar("T")

TopicPartition = tuple[str, int]
EpochOf = tuple[str, int, int]
"""Topic, partition, leader epoch."""


async def log_offsets(
    cluster: ClientCluster, partitions: Collection[TopicPartition], at: int
) -> dict[TopicPartition, int]:
    """The log start (EARLIEST) or the high watermark (LATEST) of each."""
    api = message(ApiKey.LIST_OFFSETS, 7)
    topics = tuple(
        api.make(
            "ListOffsetsTopic",
            name=topic,
            partitions=tuple(api.make("ListOffsetsPartition", partition_index=p, timestamp=at) for p in indexes),
        )
        for topic, indexes in by_topic(partitions).items()
    )
    if not topics:
        return {}
    answer = await cluster.call(cluster.any_node(), api, replica_id=_CONSUMER, isolation_level=0, topics=topics)
    found = {
        (topic.name, p.partition_index): _checked(p, p.offset) for topic in answer.topics for p in topic.partitions
    }
    return _complete(found, partitions)


async def epoch_ends(cluster: ClientCluster, asked: Collection[EpochOf]) -> dict[EpochOf, int]:
    """The offset after the last record with this epoch or a lower one. It is final once the epoch has risen."""
    if not asked:
        return {}
    api = message(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4)
    rows = sorted(asked)
    topics = tuple(
        api.make(
            "OffsetForLeaderTopic",
            topic=topic,
            partitions=(api.make("OffsetForLeaderPartition", partition=index, leader_epoch=epoch),),
        )
        for topic, index, epoch in rows
    )
    answer = await cluster.call(cluster.any_node(), api, replica_id=_CONSUMER, topics=topics)
    ends = [_checked(p, p.end_offset) for topic in answer.topics for p in topic.partitions]
    if len(ends) != len(rows) or min(ends) < 0:
        raise UnavailableError(f"end of an epoch is not known yet: asked={rows} ends={ends}")
    return dict(zip(rows, ends, strict=True))


async def partition_epochs(
    cluster: ClientCluster, partitions: Collection[TopicPartition], node_id: int | None = None
) -> dict[TopicPartition, PartitionEpochs]:
    """PartitionLeaderEpochsForPartitions, of any agent or a certain one."""
    if not partitions:
        return {}
    frame = Frame(LEADER_EPOCHS_KEY, VERSION, encode_epochs_request(by_topic(partitions)), flexible=False)
    answer = decode_epochs_response(await cluster.send(cluster.any_node() if node_id is None else node_id, frame))
    found = {(topic, each.partition): each for topic, rows in answer.items() for each in rows if not each.error_code}
    return _complete(found, partitions)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Indexes by topic."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        found[topic].append(index)
    return dict(found)


def _checked(row: Any, offset: int) -> int:
    if row.error_code is not ErrorCode.none:
        raise UnavailableError(f"no offset: {row.error_code.name}")
    return int(offset)


def _complete(found: dict[TopicPartition, T], asked: Collection[TopicPartition]) -> dict[TopicPartition, T]:
    if missing := set(asked) - found.keys():
        raise UnavailableError(f"not all partitions are known: missing={sorted(missing)[:3]}")
    return found


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
