"""SetPartitionCount (a private API key, version 0): a topic gets more partitions or fewer.

Place: request fields to partition_counts.py; asked by `headrace topics alter --partitions`, for lower counts.
Any agent answers it.
"""

from __future__ import annotations

from headrace.agent.topics.counts.count_changes import PartitionCounts, WantedCount
from headrace.protocol.own_requests import COUNT_VERSION, CountResponse, decode_count_request, encode_count_response
from headrace.protocol.request import CloseConnection, Request, Response


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
