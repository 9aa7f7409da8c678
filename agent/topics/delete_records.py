"""DeleteRecords (key 21, versions 0-2): moves log starts forward and deletes the records before them.

Place: between the listener and the metastore, which checks each offset under the partition's lock.
Invariant: after the answer, no consumer reads below the low watermark from this agent; other agents learn it from the
feed, one poll later. A first part of the extents is removed in the call; the rest is invisible and is
removed by retention (compactor/retention.py). A repeated request is safe.
Source: KIP-107; Kafka's Partition.deleteRecordsOnLeader for refused offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest
from kio.schema.delete_records.v2.response import DeleteRecordsPartitionResult, DeleteRecordsTopicResult
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.partition_names import RequestedPartition, resolve
from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.retention import TO_HIGH_WATERMARK, LogStartAnswer, LogStartTarget, RetentionApi
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.protocol.errors import admin_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.errors import HeadraceError

log = logging.getLogger(__name__)

EXTENTS_PER_REQUEST = 1_000
"""Number of extents removed while the client waits."""
PARTITIONS_PER_CALL = 200
"""Partitions per call. A call locks their rows, and at its end their commit shards: a long list must not block
producers."""

_TopicPartition = tuple[str, int]
"""Topic and partition index."""


class _Deleted(NamedTuple):
    """The answer for one partition."""

    error: int = ErrorCode.none
    low_watermark: int = -1


class DeleteRecords:
    """Delete the records of partitions below an offset."""

    def __init__(
        self,
        cluster: ClusterView,
        metastore: RetentionApi,
        configs: EffectiveConfigs,
        before_move: Callable[[], Callable[[int, int], None]],
    ) -> None:
        """`before_move()` returns a callback for (partition key, log start): FetchService.before_log_starts_move."""
        self._cluster = cluster
        self._metastore = metastore
        self._configs = configs
        self._before_move = before_move

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DeleteRecordsRequest)
        wanted: dict[tuple[str, int], int] = {
            (topic.name, p.partition_index): int(p.offset) for topic in entity.topics for p in topic.partitions
        }
        found = await self._delete_all(wanted)

        def result(topic: str, partition: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
            one = found[topic, partition.partition_index]
            return schema.make(
                DeleteRecordsPartitionResult,
                partition_index=partition.partition_index,
                low_watermark=one.low_watermark,
                error_code=ErrorCode(one.error),
            )

        topics = tuple(
            schema.make(
                DeleteRecordsTopicResult,
                name=topic.name,
                partitions=tuple(result(topic.name, p) for p in topic.partitions),
            )
            for topic in entity.topics
        )
        return reply(request, schema.response(topics=topics))

    async def _delete_all(self, wanted: dict[_TopicPartition, int]) -> dict[_TopicPartition, _Deleted]:
        resolved = await resolve(self._cluster, [RequestedPartition(topic, index, -1) for topic, index in wanted])
        found: dict[_TopicPartition, _Deleted] = {}
        targets: dict[int, _TopicPartition] = {}
        for place, one in zip(wanted, resolved, strict=True):
            error = self._why_not(place[0], wanted[place], one.error)
            if error:
                found[place] = _Deleted(error)
            else:
                targets[one.key] = place
        moved = await self._move([LogStartTarget(key, wanted[place]) for key, place in targets.items()])
        return found | {targets[key]: deleted for key, deleted in moved.items()}

    def _why_not(self, topic: str, offset: int, unknown: int) -> int:
        """The error, if it is known without the metastore."""
        if rendered_topic(topic) is not None:
            return ErrorCode.invalid_topic_exception
        if unknown:
            return unknown
        if offset < TO_HIGH_WATERMARK:
            return ErrorCode.offset_out_of_range
        policies = self._configs.topic_value(self._cluster.image, topic, "cleanup.policy")
        keeps_the_newest = "compact" in policies and "delete" not in policies
        return ErrorCode.policy_violation if keeps_the_newest else ErrorCode.none

    async def _move(self, targets: Sequence[LogStartTarget]) -> dict[int, _Deleted]:
        """Move log starts in the order of partition keys; after one failure the metastore is not asked for the rest."""
        moved: dict[int, _Deleted] = {}
        room = EXTENTS_PER_REQUEST
        for begin in range(0, len(targets), PARTITIONS_PER_CALL):
            some = targets[begin : begin + PARTITIONS_PER_CALL]
            on_moved = self._before_move()
            try:
                answers = await self._metastore.move_log_starts(some, max_extents=room)
            except HeadraceError as error:
                log.warning("cannot delete records: partitions=%d error=%s", len(targets) - begin, error)
                failed = _Deleted(admin_error(error))
                return moved | {target.partition_key: failed for target in targets[begin:]}
            room -= sum(answer.removed_extents for answer in answers)
            for target, answer in zip(some, answers, strict=True):
                if answer.known:
                    on_moved(target.partition_key, answer.log_start_offset)
                moved[target.partition_key] = _judged(target, answer)
        return moved


def _judged(target: LogStartTarget, answer: LogStartAnswer) -> _Deleted:
    if not answer.known:
        return _Deleted(ErrorCode.unknown_topic_or_partition)
    if target.offset > answer.high_watermark:
        return _Deleted(ErrorCode.offset_out_of_range)
    return _Deleted(low_watermark=answer.log_start_offset)
