"""CreatePartitions (key 37, versions 0-3): adds partitions to topics.

Place: request fields to partition_counts.py, which judges and carries out.
Invariant: as Kafka, it never takes partitions away: a lower count is refused.
Source: KIP-195.
"""

from __future__ import annotations

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest
from kio.schema.create_partitions.v3.response import CreatePartitionsTopicResult
from kio.schema.errors import ErrorCode

from headrace.agent.access.quotas.mutations import MESSAGE, MutationQuotas, unlimited
from headrace.agent.cluster.log_change import Verdict
from headrace.agent.topics.counts.count_changes import PartitionCounts, WantedCount
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, reply

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
