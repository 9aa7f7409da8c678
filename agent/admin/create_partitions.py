"""CreatePartitions (key 37, versions 0-3): adds partitions to topics.

Place: request fields to PartitionRecords in the metadata log.
Invariant: compare and append: if the log changed meanwhile, everything is checked again on the newer image. Each
topic gets a separate result. Assignments are checked and then ignored: any agent serves any partition.
Source: KIP-195; Kafka's ReplicationControlManager.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.admin.log_change import Verdict
from headrace.agent.admin.manual_assignment import why_unassignable
from headrace.agent.admin.topic_rules import PARTITIONS_PER_REQUEST_MAX, TopicDefaults, why_too_many
from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.topics import PartitionApi, PartitionGrowth
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.errors import admin_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import NO_THROTTLE, decode, reply
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, OutcomeUnknownError


class CreatePartitions:
    """The handler."""

    def __init__(
        self,
        cluster: ClusterView,
        api: PartitionApi,
        clock: Clock,
        defaults: Callable[[], TopicDefaults] = lambda: TopicDefaults(1, 1),
        on_limit: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._defaults = defaults
        self._on_limit = on_limit
        self._cluster = cluster
        self._api = api
        self._clock = clock

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        deadline = request.received_at + entity.timeout.total_seconds()
        verdicts = await self._grow(entity.topics, deadline, validate_only=entity.validate_only)
        results = tuple(
            schema.make(
                "CreatePartitionsTopicResult", name=topic.name, error_code=verdict.code, error_message=verdict.message
            )
            for topic, verdict in zip(entity.topics, verdicts, strict=True)
        )
        return reply(request, schema.response(throttle_time=NO_THROTTLE, results=results))

    async def _grow(self, topics: Sequence[Any], deadline: float, *, validate_only: bool) -> list[Verdict]:
        times = Counter(topic.name for topic in topics)
        in_doubt: dict[uuid.UUID, int] = {}
        try:
            while True:
                image = await self._cluster.catch_up()
                judged = [self._judge(image, topic, times[topic.name], in_doubt) for topic in topics]
                verdicts = [judgement if isinstance(judgement, Verdict) else Verdict() for judgement in judged]
                growths = [judgement for judgement in judged if isinstance(judgement, PartitionGrowth)]
                if refusal := self._why_too_many(image, growths):
                    return [
                        refusal if isinstance(j, PartitionGrowth) else v for j, v in zip(judged, verdicts, strict=True)
                    ]
                if not growths or validate_only:
                    return verdicts
                try:
                    if await self._api.create_partitions(image.offset, growths):
                        await self._cluster.catch_up()
                        return verdicts
                except OutcomeUnknownError:
                    in_doubt = {growth.topic_id: growth.partition_count for growth in growths}
                if self._clock.monotonic() >= deadline:
                    late = Verdict(
                        ErrorCode.request_timed_out, "the metadata log kept changing, or its answers were lost"
                    )
                    return [
                        late if isinstance(j, PartitionGrowth) else v for j, v in zip(judged, verdicts, strict=True)
                    ]
        except HeadraceError as error:
            return [Verdict(ErrorCode(admin_error(error)), str(error))] * len(topics)

    def _why_too_many(self, image: MetadataImage, growths: Sequence[PartitionGrowth]) -> Verdict | None:
        added = sum(growth.partition_count - growth.first_index for growth in growths)
        if added > PARTITIONS_PER_REQUEST_MAX:
            return Verdict(ErrorCode.policy_violation, "excessively large number of partitions per request")
        refusal = why_too_many(image, (0, added), self._defaults())
        if refusal is None:
            return None
        self._on_limit(refusal.limit)
        return Verdict(refusal.code, refusal.message)

    def _judge(
        self, image: MetadataImage, wanted: Any, times: int, in_doubt: Mapping[uuid.UUID, int]
    ) -> PartitionGrowth | Verdict:
        """The records to append, or the result; an append with a lost response is recognised by its result.

        `times`: how often the request names the topic; `in_doubt`: topic id -> the count after an uncertain append.
        """
        if times > 1:
            return Verdict(ErrorCode.invalid_request, f"duplicate topic name: {wanted.name}")
        topic = image.topics_by_name.get(wanted.name)
        if topic is None:
            return Verdict(ErrorCode.unknown_topic_or_partition, "topic does not exist")
        count = len(topic.leader_epochs)
        if in_doubt.get(topic.topic_id) == count:
            return Verdict()
        if wanted.count == count:
            return Verdict(ErrorCode.invalid_partitions, f"the topic already has {count} partitions")
        if wanted.count < count:
            message = f"the topic already has {count} partitions, {wanted.count} is not more"
            return Verdict(ErrorCode.invalid_partitions, message)
        preferred = [a.broker_ids for a in wanted.assignments or ()]
        if wanted.assignments is not None and (refusal := _assignment_refusal(image, preferred, wanted.count - count)):
            return refusal
        return PartitionGrowth(topic.topic_id, count, wanted.count, preferred)


def _assignment_refusal(image: MetadataImage, preferred: Sequence[Sequence[int]], added: int) -> Verdict | None:
    reason = why_unassignable(image, preferred)
    if len(preferred) != added:
        reason = f"{added} partitions are added, but {len(preferred)} are assigned"
    return None if reason is None else Verdict(ErrorCode.invalid_replica_assignment, reason)
