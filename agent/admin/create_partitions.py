"""CreatePartitions (key 37, versions 0-3): adds partitions to topics.

Place: request fields to partition_counts.py, which judges and carries out.
Invariant: as Kafka, it never takes partitions away: a lower count is refused.
Source: KIP-195.
"""

from __future__ import annotations

from headrace.agent.admin.partition_counts import PartitionCounts, WantedCount
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import NO_THROTTLE, decode, reply


class CreatePartitions:
    """The handler."""

    def __init__(self, counts: PartitionCounts) -> None:
        self._counts = counts

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        deadline = request.received_at + entity.timeout.total_seconds()
        wanted = [
            WantedCount(
                topic.name,
                topic.count,
                None if topic.assignments is None else [assigned.broker_ids for assigned in topic.assignments],
            )
            for topic in entity.topics
        ]
        verdicts = await self._counts.change(wanted, deadline, validate_only=entity.validate_only)
        results = tuple(
            schema.make(
                "CreatePartitionsTopicResult", name=topic.name, error_code=verdict.code, error_message=verdict.message
            )
            for topic, verdict in zip(entity.topics, verdicts, strict=True)
        )
        return reply(request, schema.response(throttle_time=NO_THROTTLE, results=results))
