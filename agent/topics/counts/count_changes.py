"""Changes of topics' partition counts: judged on an image, carried out by the metastore in one transaction.

Place: behind CreatePartitions (key 37, versions 0-3), which grows only, and behind SetPartitionCount (a private API
key, version 0), the request of `headrace topics alter --partitions`, for lower counts. Any agent answers them.
Invariant: compare and append: if the log changed meanwhile, everything is checked again on the newer image. Each
topic gets a separate result. As Kafka, CreatePartitions never takes partitions away: a lower count is refused. From
metadata.format 4 on, leader epochs rise with the count (decisions/0049); below it a topic grows without, and does
not shrink. Assignments are checked and then ignored: any agent serves any partition. A topic grows when the bulk
writes that were decided for it are complete.
Source: KIP-195; KIP-253; Kafka's ReplicationControlManager.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest
from kio.schema.create_partitions.v3.response import CreatePartitionsTopicResult
from kio.schema.errors import ErrorCode

from headrace.agent.access.quotas.enforcement import MESSAGE, MutationQuotas, unlimited
from headrace.agent.cluster.log_change import Verdict, Waits, change_log
from headrace.agent.cluster.view import ClusterView
from headrace.agent.topics.counts.scaling import unfinished_writes, why_unfinished
from headrace.agent.topics.topic_rules import PARTITIONS_PER_REQUEST_MAX, TopicDefaults, why_too_many, why_unassignable
from headrace.metastore.api.topics import CountChange, PartitionGrowth, TopicApi
from headrace.metastore.log.features import PARTITION_CHANGES_FORMAT
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.linked_topics import NO_OTHER_COUNT, why_linked
from headrace.metastore.log.shown_counts import like_the_first
from headrace.metastore.partitions.changes import change_count
from headrace.protocol.own_requests import COUNT_VERSION, CountResponse, decode_count_request, encode_count_response
from headrace.protocol.request import CloseConnection, Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, InvalidError


class WantedCount(NamedTuple):
    """`assignments`: node ids for each new partition; None: none are given. `may_shrink`: a lower count is meant."""

    topic: str
    partition_count: int
    assignments: Sequence[Sequence[int]] | None = None
    may_shrink: bool = False


class _Plan(NamedTuple):
    """What the metastore is asked for, and how many partitions it adds."""

    change: CountChange | PartitionGrowth
    partition_count: int
    added: int


class PartitionCounts:
    """Sets counts; shared by the handlers."""

    def __init__(
        self,
        cluster: ClusterView,
        api: TopicApi,
        clock: Clock,
        defaults: Callable[[], TopicDefaults] = lambda: TopicDefaults(1, 1),
        on_limit: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cluster, self._api, self._clock = cluster, api, clock
        self._defaults, self._on_limit = defaults, on_limit

    async def change(self, wanted: Sequence[WantedCount], deadline: float, *, validate_only: bool) -> list[Verdict]:
        """A result for each topic, in order."""
        times = Counter(each.topic for each in wanted)
        judged: list[_Plan | Verdict] = []

        async def judge(image: MetadataImage, in_doubt: Sequence[_Plan] | None) -> Sequence[_Plan] | Verdict:
            attempted = {plan.change.topic_id: plan.partition_count for plan in in_doubt or ()}
            judged[:] = [self._judge(image, each, times[each.topic], attempted) for each in wanted]
            plans = [judgement for judgement in judged if isinstance(judgement, _Plan)]
            if refusal := self._why_too_many(image, plans):
                return refusal
            return plans if plans and not validate_only else Verdict()

        async def carry_out(image: MetadataImage, plans: Sequence[_Plan]) -> bool | Waits:
            if left := await self._unfinished_writes(plans):
                return unfinished_writes(left)
            return await self._carry_out(image.offset, plans)

        try:
            of_plans = await change_log(self._cluster, self._clock, judge, carry_out, deadline)
        except HeadraceError as error:
            return [Verdict.failed(error)] * len(wanted)
        return [judgement if isinstance(judgement, Verdict) else of_plans for judgement in judged]

    def added(self, wanted: WantedCount) -> int:
        """Return how many partitions it adds, as far as this agent knows."""
        topic = self._cluster.image.topics_by_name.get(wanted.topic)
        return 0 if topic is None else max(wanted.partition_count - topic.ordered_partitions.undeleted, 0)

    async def _unfinished_writes(self, plans: Sequence[_Plan]) -> int:
        """Chunks of decided bulk writes that the topics which grow wait for."""
        growing = [plan.change.topic_id for plan in plans if plan.added]
        return await self._api.announce_counts(growing) if growing else 0

    async def _carry_out(self, head: int, plans: Sequence[_Plan]) -> bool:
        """All plans are made from one image, so they are of one kind."""
        changes = [plan.change for plan in plans if isinstance(plan.change, CountChange)]
        growths = [plan.change for plan in plans if isinstance(plan.change, PartitionGrowth)]
        if changes:
            return await self._api.change_partition_counts(head, changes)
        return await self._api.create_partitions(head, growths)

    def _why_too_many(self, image: MetadataImage, plans: Sequence[_Plan]) -> Verdict | None:
        added = sum(plan.added for plan in plans)
        if added > PARTITIONS_PER_REQUEST_MAX:
            return Verdict(ErrorCode.policy_violation, "excessively large number of partitions per request")
        refusal = why_too_many(image, (0, added), self._defaults())
        if refusal is None:
            return None
        self._on_limit(refusal.limit)
        return Verdict(refusal.code, refusal.message)

    def _judge(
        self, image: MetadataImage, wanted: WantedCount, times: int, in_doubt: Mapping[uuid.UUID, int]
    ) -> _Plan | Verdict:
        """A plan, or the result; a change with a lost response is recognised by its result.

        `times`: how often the request names the topic; `in_doubt`: topic id -> the count after an uncertain change.
        """
        if times > 1:
            return Verdict(ErrorCode.invalid_request, f"duplicate topic name: {wanted.topic}")
        topic = image.topics_by_name.get(wanted.topic)
        if topic is None:
            return Verdict(ErrorCode.unknown_topic_or_partition, "topic does not exist")
        if reason := why_linked(image, wanted.topic, NO_OTHER_COUNT):
            return Verdict(ErrorCode.policy_violation, reason)
        count = topic.ordered_partitions.undeleted
        if in_doubt.get(topic.topic_id) == count:
            return Verdict()
        if wanted.partition_count == count:
            return Verdict(ErrorCode.invalid_partitions, f"the topic already has {count} partitions")
        if wanted.partition_count < count and not wanted.may_shrink:
            message = f"the topic already has {count} partitions, {wanted.partition_count} is not more"
            return Verdict(ErrorCode.invalid_partitions, message)
        preferred = wanted.assignments
        if preferred is not None and (refusal := _assignment_refusal(image, preferred, wanted.partition_count - count)):
            return refusal
        return _plan(image, topic, wanted.partition_count, preferred)


def _plan(
    image: MetadataImage, topic: TopicImage, wanted: int, assignments: Sequence[Sequence[int]] | None
) -> _Plan | Verdict:
    partitions = topic.ordered_partitions
    added = max(wanted - partitions.undeleted, 0)
    preferred = like_the_first(topic, added) if assignments is None else assignments
    if image.metadata_format < PARTITION_CHANGES_FORMAT:
        if not added:
            message = (
                f"partitions are removed from metadata.format {PARTITION_CHANGES_FORMAT} on: raise the level first"
            )
            return Verdict(ErrorCode.unsupported_version, message)
        return _Plan(PartitionGrowth(topic.topic_id, partitions.undeleted, wanted, preferred), wanted, added)
    if refusal := why_unfinished(topic):
        return refusal
    if added > PARTITIONS_PER_REQUEST_MAX:  # the refusal needs no plan of them
        return _Plan(PartitionGrowth(topic.topic_id, partitions.undeleted, wanted), wanted, added)
    try:
        change = change_count(partitions, wanted)
    except InvalidError as error:
        return Verdict(ErrorCode.invalid_partitions, str(error))
    assert change is not None, "the count differs"
    return _Plan(CountChange(topic.topic_id, partitions.initial, change, preferred), wanted, added)


def _assignment_refusal(image: MetadataImage, preferred: Sequence[Sequence[int]], added: int) -> Verdict | None:
    reason = why_unassignable(image, preferred)
    if len(preferred) != added:
        reason = f"{added} partitions are added, but {len(preferred)} are assigned"
    return None if reason is None else Verdict(ErrorCode.invalid_replica_assignment, reason)


OVER_QUOTA = Verdict(ErrorCode.throttling_quota_exceeded, MESSAGE)


class CreatePartitions:
    """Add partitions to topics."""

    def __init__(self, counts: PartitionCounts, mutations: MutationQuotas = unlimited) -> None:
        self._counts, self._mutations = counts, mutations

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, CreatePartitionsRequest)
        deadline = request.received_at + entity.timeout.total_seconds()
        wanted = [
            WantedCount(
                topic.name,
                topic.count,
                None if topic.assignments is None else [assigned.broker_ids for assigned in topic.assignments],
            )
            for topic in entity.topics
        ]
        quota = unlimited(request) if entity.validate_only else self._mutations(request)
        is_admitted = [quota.admits(self._counts.added(each)) for each in wanted]
        admitted = [each for each, is_in in zip(wanted, is_admitted, strict=True) if is_in]
        changed = iter(await self._counts.change(admitted, deadline, validate_only=entity.validate_only))
        verdicts = [next(changed) if is_in else OVER_QUOTA for is_in in is_admitted]
        results = tuple(
            schema.make(
                CreatePartitionsTopicResult, name=topic.name, error_code=verdict.code, error_message=verdict.message
            )
            for topic, verdict in zip(entity.topics, verdicts, strict=True)
        )
        return quota.throttle(reply(request, schema.response(results=results)))


class SetPartitionCount:
    """Set the partition count of a topic."""

    def __init__(self, counts: PartitionCounts) -> None:
        self._counts = counts

    async def __call__(self, request: Request) -> Response:
        if request.api_version != COUNT_VERSION:
            raise CloseConnection("version not served")
        asked = decode_count_request(request.body)
        wanted = WantedCount(asked.topic, asked.partition_count, may_shrink=True)
        deadline = request.received_at + asked.timeout_ms / 1000
        (verdict,) = await self._counts.change([wanted], deadline, validate_only=asked.validate_only)
        answer = CountResponse(int(verdict.code), verdict.message)
        return Response(entity=answer, write=lambda entity: [encode_count_response(request.correlation_id, entity)])
