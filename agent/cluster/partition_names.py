"""Resolves the names in a request to partition keys, or to an error for each name.

Place: first step of Fetch, ListOffsets and other requests that name partitions, before any look-up.
Invariant: a request resolves all names with one image. A name is unknown, a leader epoch too new, or a partition
count wrong, only after the image caught up with the end of the metadata log.
Source: KIP-253 (partition counts), KIP-320 (leader epochs), KIP-516 (topic ids).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.shown_counts import undeleted_count
from headrace.protocol.errors import INVALID_PARTITION_METADATA, READ_FAILED
from headrace.protocol.partition_counts import NO_COUNT
from headrace.storage.errors import HeadraceError

log = logging.getLogger(__name__)

TopicRef = str | uuid.UUID
"""A topic as in the request: a name or an id."""

_MAY_BE_NEWS = frozenset(
    (
        int(ErrorCode.unknown_topic_or_partition),
        int(ErrorCode.unknown_topic_id),
        int(ErrorCode.unknown_leader_epoch),
        INVALID_PARTITION_METADATA,
    )
)


class RequestedPartition(NamedTuple):
    """A partition of a request; `leader_epoch` and `partition_count` are the client's, -1 if it sent none."""

    topic: TopicRef
    partition: int
    leader_epoch: int
    partition_count: int = NO_COUNT


class Resolved(NamedTuple):
    """`key` is the partition's key if `error` is none, else -1."""

    key: int
    error: int = ErrorCode.none


async def resolve(view: ClusterView, requested: Sequence[RequestedPartition]) -> list[Resolved]:
    """One answer per partition, in order."""
    image = view.image
    answers = [_resolve(image, partition) for partition in requested]
    if _MAY_BE_NEWS.isdisjoint([answer.error for answer in answers]):
        return answers
    try:
        image = await view.catch_up()
    except HeadraceError as error:
        log.warning("cannot resolve names: cannot read metadata log: error=%s", error)
        failed = Resolved(-1, READ_FAILED)
        return [failed if answer.error in _MAY_BE_NEWS else answer for answer in answers]
    return [_resolve(image, partition) for partition in requested]


def unknown_topic(topic: TopicRef) -> ErrorCode:
    """The error for a topic that does not exist, depending on name or id."""
    return ErrorCode.unknown_topic_or_partition if isinstance(topic, str) else ErrorCode.unknown_topic_id


def _resolve(image: MetadataImage, partition: RequestedPartition) -> Resolved:
    if isinstance(partition.topic, str):
        topic = image.topics_by_name.get(partition.topic)
    else:
        topic = image.topics_by_id.get(partition.topic)
    if topic is None:
        return Resolved(-1, unknown_topic(partition.topic))
    key = topic.key(partition.partition)
    if key is None:
        return Resolved(-1, ErrorCode.unknown_topic_or_partition)
    if partition.partition_count != NO_COUNT and partition.partition_count != undeleted_count(topic):
        return Resolved(-1, INVALID_PARTITION_METADATA)
    if partition.leader_epoch >= 0:
        current = topic.leader_epochs[partition.partition]
        if partition.leader_epoch < current:
            return Resolved(-1, ErrorCode.fenced_leader_epoch)
        if partition.leader_epoch > current:
            return Resolved(-1, ErrorCode.unknown_leader_epoch)
    return Resolved(key)
