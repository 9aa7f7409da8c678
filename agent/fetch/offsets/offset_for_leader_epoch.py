"""OffsetForLeaderEpoch (key 23, versions 2-4): the end offset of a leader epoch, for consumers that validate their
offset.

Place: between the listener and the metastore, like ListOffsets.
Invariant: every answer comes from the primary, because a consumer resets its offset if the end is too low. An error
of one partition does not affect others.
Source: KIP-320; Kafka's LeaderEpochFileCache for the answer for epochs without records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest
from kio.schema.offset_for_leader_epoch.v4.response import EpochEndOffset, OffsetForLeaderTopicResult

from headrace.agent.cluster.partition_names import RequestedPartition, Resolved, resolve
from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import EpochEnd, EpochQuery
from headrace.metastore.log.image import TopicImage
from headrace.metastore.log.metadata_topic import METADATA_TOPIC_IMAGE
from headrace.metastore.segment_logs.topics import REMOTE_LOG_IMAGE, rendered_topic
from headrace.protocol.errors import READ_FAILED
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.errors import HeadraceError

log = logging.getLogger(__name__)

RENDERED_EPOCH = 0
"""The leader epoch of the whole topics that agents render."""


class _Found(NamedTuple):
    """The answer for one partition."""

    error: int = ErrorCode.none
    leader_epoch: int = -1
    end_offset: int = -1


class OffsetForLeaderEpoch:
    """Return where leader epochs end."""

    def __init__(self, cluster: ClusterView, metastore: Metastore) -> None:
        self._cluster = cluster
        self._metastore = metastore

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, OffsetForLeaderEpochRequest)
        asked = [(topic.topic, p) for topic in entity.topics for p in topic.partitions]
        requested = [RequestedPartition(name, p.partition, p.current_leader_epoch) for name, p in asked]
        found = iter(await self._find_all(requested, [p.leader_epoch for _, p in asked]))
        topics = tuple(
            schema.make(
                OffsetForLeaderTopicResult,
                topic=topic.topic,
                partitions=tuple(
                    schema.make(
                        EpochEndOffset,
                        error_code=ErrorCode((one := next(found)).error),
                        partition=p.partition,
                        leader_epoch=one.leader_epoch,
                        end_offset=one.end_offset,
                    )
                    for p in topic.partitions
                ),
            )
            for topic in entity.topics
        )
        return reply(request, schema.response(topics=topics))

    async def _find_all(self, requested: Sequence[RequestedPartition], epochs: Sequence[int]) -> list[_Found]:
        """One answer per partition, in order; one call for all that the metastore has to be asked."""
        resolved = await resolve(self._cluster, requested)
        queries = [EpochQuery(r.key, epoch) for r, epoch in zip(resolved, epochs, strict=True) if not r.error]
        try:
            ends = iter(await self._metastore.index.find_epoch_ends(queries))
            return [
                _answer(one, ends)
                if (topic := rendered_topic(partition.topic)) is None
                else await self._rendered_end(topic, partition.partition, epoch)
                for partition, one, epoch in zip(requested, resolved, epochs, strict=True)
            ]
        except HeadraceError as error:
            log.warning("cannot find ends of leader epochs: partitions=%d error=%s", len(requested), error)
            return [_Found(READ_FAILED)] * len(requested)

    async def _rendered_end(self, topic: TopicImage, partition: int, epoch: int) -> _Found:
        if topic.key(partition) is None:
            return _Found(ErrorCode.unknown_topic_or_partition)
        if epoch != RENDERED_EPOCH:
            return _Found()
        if topic is METADATA_TOPIC_IMAGE:
            return _Found(ErrorCode.none, RENDERED_EPOCH, (await self._cluster.catch_up()).offset)
        ends = (await self._metastore.segment_logs.segment_log_ends())[partition]
        end_offset = ends.next_offset if topic is REMOTE_LOG_IMAGE else ends.next_audit_offset
        return _Found(ErrorCode.none, RENDERED_EPOCH, end_offset)


def _answer(resolved: Resolved, ends: Iterator[EpochEnd]) -> _Found:
    if resolved.error:
        return _Found(resolved.error)
    end = next(ends)
    return (
        _Found(ErrorCode.none, end.leader_epoch, end.end_offset)
        if end.known
        else _Found(ErrorCode.unknown_topic_or_partition)
    )
