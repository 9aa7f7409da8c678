"""The requests that delete: DeleteTopics (key 20, versions 1-6), DeleteRecords (21, versions 0-2).

Place: DeleteTopics makes RemoveTopicRecords in the metadata log. DeleteRecords moves log starts forward in the
metastore, which checks each offset under the partition's lock, and deletes the records before them.
Invariant: a name is resolved once, so a topic that is created again with that name meanwhile is kept. A topic counts
as deleted regardless of which append removed it. What the log said of it is kept, so that it can be restored. After
the answer to DeleteRecords, no consumer reads below the low watermark from this agent; other agents learn it from
the feed, one poll later. A first part of the extents is removed in the call; the rest is invisible and is removed by
retention (compactor/retention.py). A repeated request is safe.
Source: KIP-516 (topic ids, from version 6 of DeleteTopics); KIP-107; Kafka's Partition.deleteRecordsOnLeader for
refused offsets.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest
from kio.schema.delete_records.v2.response import DeleteRecordsPartitionResult, DeleteRecordsTopicResult
from kio.schema.delete_topics.v6.response import DeletableTopicResult
from kio.schema.errors import ErrorCode

from headrace.agent.access.quotas.enforcement import MESSAGE, MutationQuota, MutationQuotas, unlimited
from headrace.agent.cluster.log_change import LOG_KEPT_CHANGING, Appends
from headrace.agent.cluster.partition_names import RequestedPartition, resolve
from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.retention import TO_HIGH_WATERMARK, LogStartAnswer, LogStartTarget, RetentionApi
from headrace.metastore.api.topics import TopicApi
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.linked_topics import NO_DELETION, why_linked
from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.metastore.topic_restore import kept_records
from headrace.protocol.errors import admin_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, OutcomeUnknownError, UnavailableError

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
        if self._cluster.image.link_of(topic):  # its log start is the source's; the answer has no message
            return ErrorCode.policy_violation
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


@dataclass(slots=True)
class _Deletion:
    """One topic of the request, as requested and as resolved, and its result."""

    name: str | None
    topic_id: uuid.UUID | None
    code: ErrorCode = ErrorCode.none
    message: str | None = None

    def refuse(self, code: ErrorCode, message: str) -> None:
        self.code, self.message = code, message


class DeleteTopics:
    """Delete topics, by name or by id."""

    def __init__(
        self, cluster: ClusterView, api: TopicApi, clock: Clock, mutations: MutationQuotas = unlimited
    ) -> None:
        self._cluster = cluster
        self._api = api
        self._mutations = mutations
        self._clock = clock

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        if request.api_version >= 6:
            deletions = [_Deletion(topic.name, topic.topic_id) for topic in entity.topics]
        else:
            deletions = [_Deletion(name, None) for name in entity.topic_names]
        quota = self._mutations(request)
        await self._delete(deletions, request.received_at + entity.timeout.total_seconds(), quota)
        responses = tuple(
            schema.make(
                DeletableTopicResult, name=d.name, topic_id=d.topic_id, error_code=d.code, error_message=d.message
            )
            for d in deletions
        )
        return quota.throttle(reply(request, schema.response(responses=responses)))

    async def _delete(self, deletions: list[_Deletion], deadline: float, quota: MutationQuota) -> None:
        _refuse_malformed(deletions)
        try:
            image = await self._cluster.catch_up()
            _resolve(deletions, image)
            _refuse_linked(deletions, image)
            _admit(deletions, image, quota)
            appends = Appends(self._cluster, self._clock, deadline)
            while remaining := _remaining(deletions, image):
                if not appends.may_go_on:
                    return _give_up(deletions, image, LOG_KEPT_CHANGING)
                appends.begin()
                with contextlib.suppress(OutcomeUnknownError):  # the next image shows which topics were deleted
                    kept = {topic_id: kept_records(image, image.topics_by_id[topic_id]) for topic_id in remaining}
                    if not await self._api.delete_topics(image.offset, remaining, kept):
                        await appends.came_late()
                image = await self._cluster.catch_up()
        except UnavailableError as error:
            _give_up(deletions, self._cluster.image, str(error))


def _refuse_malformed(deletions: list[_Deletion]) -> None:
    times = Counter((d.name, d.topic_id) for d in deletions)
    for d in deletions:
        if d.name is not None and d.topic_id is not None:
            d.refuse(ErrorCode.invalid_request, "set either the topic name or the topic id, not both")
        elif d.name is None and d.topic_id is None:
            d.refuse(ErrorCode.invalid_request, "neither topic name nor topic id given")
        elif times[d.name, d.topic_id] > 1:
            d.refuse(ErrorCode.invalid_request, "duplicate topic")


def _resolve(deletions: list[_Deletion], image: MetadataImage) -> None:
    given_ids = {d.topic_id for d in deletions if d.topic_id is not None}
    for d in deletions:
        if d.code is not ErrorCode.none:
            continue
        if d.topic_id is not None:
            _fill(d, image.topics_by_id.get(d.topic_id), ErrorCode.unknown_topic_id)
        elif d.name is not None:
            _fill(d, image.topics_by_name.get(d.name), ErrorCode.unknown_topic_or_partition)
            if d.topic_id in given_ids:
                d.refuse(ErrorCode.invalid_request, "duplicate topic: it is also given by its id")


def _refuse_linked(deletions: list[_Deletion], image: MetadataImage) -> None:
    """A copy goes with its link, or by a request to the link: it would be created again."""
    for d in deletions:
        if d.code is ErrorCode.none and d.name is not None and (reason := why_linked(image, d.name, NO_DELETION)):
            link = image.link_of(d.name)
            d.refuse(
                ErrorCode.policy_violation,
                f"{reason}; to delete the copy: headrace link drop {link} --topics {d.name} --delete-topics",
            )


def _admit(deletions: list[_Deletion], image: MetadataImage, quota: MutationQuota) -> None:
    for d in deletions:
        topic = image.topics_by_id.get(d.topic_id) if d.code is ErrorCode.none and d.topic_id is not None else None
        if topic is not None and not quota.admits(topic.partition_count):
            d.refuse(ErrorCode.throttling_quota_exceeded, MESSAGE)


def _fill(deletion: _Deletion, topic: TopicImage | None, unknown: ErrorCode) -> None:
    if topic is None:
        deletion.refuse(unknown, "topic does not exist")
    else:
        deletion.name, deletion.topic_id = topic.name, topic.topic_id


def _remaining(deletions: list[_Deletion], image: MetadataImage) -> list[uuid.UUID]:
    return [
        d.topic_id
        for d in deletions
        if d.code is ErrorCode.none and d.topic_id is not None and d.topic_id in image.topics_by_id
    ]


def _give_up(deletions: list[_Deletion], image: MetadataImage, reason: str) -> None:
    """REQUEST_TIMED_OUT for topics that still exist, or were never resolved."""
    for d in deletions:
        if d.code is ErrorCode.none and (d.topic_id is None or d.topic_id in image.topics_by_id):
            d.refuse(ErrorCode.request_timed_out, reason)
