"""The answers to ShareFetch and ShareAcknowledge, from what the owner of the group said and what could be read.

Place: under handlers.py. Pure.
Source: Kafka's message schemas.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.share_acknowledge.v2.response import LeaderIdAndEpoch as AcknowledgeLeader
from kio.schema.share_acknowledge.v2.response import PartitionData as AcknowledgedPartition
from kio.schema.share_acknowledge.v2.response import ShareAcknowledgeResponse, ShareAcknowledgeTopicResponse
from kio.schema.share_fetch.v2.response import AcquiredRecords, ShareFetchableTopicResponse, ShareFetchResponse
from kio.schema.share_fetch.v2.response import LeaderIdAndEpoch as FetchLeader
from kio.schema.share_fetch.v2.response import PartitionData as FetchedPartition

from headrace.agent.fetch.share.deliver import ShareDelivery
from headrace.agent.fetch.share.sessions import ShareRef
from headrace.agent.peers.share_turns import PartitionTurn, TurnAnswer
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, reply

T = TypeVar("T")
AnswerParts = Mapping[ShareRef, tuple[PartitionTurn, ShareDelivery]]
"""What the owner said of each partition, and what could be read of it."""


def refused(request: Request, schema: Schema, code: ErrorCode | int, message: str | None = None) -> Response:
    """Return the answer, of either API, that has a code for the whole request."""
    return reply(
        request,
        schema.response(
            error_code=ErrorCode(code),
            error_message=message,
            acquisition_lock_timeout=timedelta(0),
            responses=(),
            node_endpoints=(),
        ),
    )


def _topics(schema: Schema, message: type[T], parts: Mapping[ShareRef, object]) -> tuple[T, ...]:
    by_topic: dict[uuid.UUID, list[object]] = {}
    for (topic_id, _), made in parts.items():
        by_topic.setdefault(topic_id, []).append(made)
    return tuple(schema.make(message, topic_id=topic_id, partitions=tuple(made)) for topic_id, made in by_topic.items())


def fetched(schema: Schema, answer: TurnAnswer, parts: AnswerParts, acks: Collection[ShareRef]) -> ShareFetchResponse:
    """The answer to ShareFetch: partitions with records, acknowledgements or an error."""
    made = {}
    for ref, (turn, delivery) in parts.items():
        if not (ref in acks or delivery.error or delivery.acquired):
            continue
        made[ref] = schema.make(
            FetchedPartition,
            partition_index=ref[1],
            error_code=ErrorCode(delivery.error),
            error_message=None,
            acknowledge_error_code=int(turn.ack_error) if ref in acks else 0,
            acknowledge_error_message=None,
            current_leader=_no_leader(schema, FetchLeader),
            records=b"".join(delivery.records),
            acquired_records=tuple(
                schema.make(AcquiredRecords, first_offset=first, last_offset=last, delivery_count=min(tries, 32_767))
                for first, last, tries in delivery.acquired
            ),
        )
    return schema.make(
        ShareFetchResponse,
        error_code=ErrorCode.none,
        error_message=None,
        acquisition_lock_timeout=timedelta(milliseconds=answer.lock_ms),
        responses=_topics(schema, ShareFetchableTopicResponse, made),
        node_endpoints=(),
    )


def acknowledged(
    schema: Schema, answer: TurnAnswer, parts: AnswerParts, acks: Collection[ShareRef]
) -> ShareAcknowledgeResponse:
    """The answer to ShareAcknowledge: partitions with acknowledgements."""
    made = {
        ref: schema.make(
            AcknowledgedPartition,
            partition_index=ref[1],
            error_code=ErrorCode(turn.ack_error),
            error_message=None,
            current_leader=_no_leader(schema, AcknowledgeLeader),
        )
        for ref, (turn, _) in parts.items()
        if ref in acks
    }
    return schema.make(
        ShareAcknowledgeResponse,
        error_code=ErrorCode.none,
        error_message=None,
        acquisition_lock_timeout=timedelta(milliseconds=answer.lock_ms),
        responses=_topics(schema, ShareAcknowledgeTopicResponse, made),
        node_endpoints=(),
    )


def _no_leader(schema: Schema, message: type[T]) -> T:
    return schema.make(message, leader_id=-1, leader_epoch=-1)
