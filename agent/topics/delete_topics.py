"""DeleteTopics (key 20, versions 1-6): by name, from version 6 also by topic id.

Place: request fields to RemoveTopicRecords in the metadata log.
Invariant: a name is resolved once, so a topic that is created again with that name meanwhile is kept. A topic counts
as deleted regardless of which append removed it. What the log said of it is kept, so that it can be restored.
Source: KIP-516 (topic ids).
"""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from dataclasses import dataclass

from kio.schema.delete_topics.v6.response import DeletableTopicResult
from kio.schema.errors import ErrorCode

from headrace.agent.access.quotas.mutations import MESSAGE, MutationQuota, MutationQuotas, unlimited
from headrace.agent.cluster.log_change import LOG_KEPT_CHANGING, Appends
from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.topics import TopicApi
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.topic_restore import kept_records
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.clock import Clock
from headrace.storage.errors import OutcomeUnknownError, UnavailableError


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
