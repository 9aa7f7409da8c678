"""Questions about partitions: where logs start and end, where an epoch ends, what a partition was created from.

Place: asked by the consumer before it waits or begins, and by the producer for old values. Any agent answers.
Invariant: an answer is complete: UnavailableError if a partition is missing or has an error, and the caller asks again.
Source: KIP-253; KIP-320 (OffsetForLeaderEpoch), Kafka's ListOffsetsRequest.json.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from headrace.client.cluster import ClientCluster
from headrace.client.frame import Frame
from headrace.client.messages import message
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.ordered_requests import (
    LEADER_EPOCHS_KEY,
    VERSION,
    PartitionEpochs,
    decode_epochs_response,
    encode_epochs_request,
)
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
