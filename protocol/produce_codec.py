"""Codec of Produce (API key 0), versions 0-13, hand-written because it is a hot path and must not copy record bytes.

Place: first and last step of the write path: a request's body becomes fields, a reply becomes buffers.
Invariant: `records` is a view into the frame; every length is checked before it is used, and no memory
is allocated for a count that the bytes do not cover.
Source: Kafka's ProduceRequest.json and ProduceResponse.json; KIP-467 (record errors), KIP-951 (leader
hints, v10), KIP-516 (topic ids, v13). Versions 0-2 are parsed only to answer with an error.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.protocol import wire
from headrace.protocol.partition_counts import NO_COUNT, sent_count
from headrace.protocol.request import REQUEST_ELEMENTS_MAX
from headrace.protocol.wire import INT32, NO_TAGS, LeaderHint, NodeEndpoint, Tags
from headrace.storage.errors import InvalidError, TooManyElementsError

FIRST_FLEXIBLE = 9
FIRST_BY_ID = 13
NO_OFFSET = -1

_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_ANSWER = struct.Struct(">ihq")
_ANSWER_V2 = struct.Struct(">ihqq")
_ANSWER_V5 = struct.Struct(">ihqqq")
_NOTHING_WRONG = {flexible: wire.size_prefix(0, flexible) + wire.string(None, flexible) for flexible in (False, True)}
"""No record errors and no message."""


@dataclass(slots=True)
class ProducePartition:
    """The data for one partition. `records` holds zero or more record batches; None if the client sent null."""

    index: int
    records: memoryview | None


@dataclass(slots=True)
class ProduceTopic:
    """`name` up to v12, `topic_id` from v13; the other is None. `tags` are the topic's tagged fields.

    `partition_count`: by which the client chose the partitions; NO_COUNT if it sent none.
    """

    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[ProducePartition]
    tags: Tags = field(default_factory=dict)
    partition_count: int = NO_COUNT


@dataclass(slots=True)
class ProduceRequest:
    """`acks` is -1, 0 or 1 (the handler refuses other values); with 0 there is no response."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


@dataclass(slots=True)
class RecordError:
    """A record that made its batch fail (version 8 and newer). `batch_index` is its index in the batch."""

    batch_index: int
    message: str | None


@dataclass(slots=True)
class ProducePartitionReply:
    """`error_code` from protocol/errors.py. `log_append_time_ms` is -1 unless the topic uses LogAppendTime."""

    index: int
    error_code: int = 0
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: int = NO_OFFSET
    record_errors: Sequence[RecordError] = ()
    error_message: str | None = None
    current_leader: LeaderHint | None = None


@dataclass(slots=True)
class ProduceTopicReply:
    """The topic, with a name or an id as in the request."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[ProducePartitionReply]


@dataclass(slots=True)
class ProduceReply:
    """`node_endpoints`: the addresses of the leaders named in `current_leader` (v10+)."""

    topics: list[ProduceTopicReply]
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


def decode_produce(body: memoryview, version: int, elements_max: int = REQUEST_ELEMENTS_MAX) -> ProduceRequest:
    """The request, with its records as views into `body`; InvalidError if it is malformed or has surplus
    bytes, TooManyElementsError beyond `elements_max` topics and partitions."""
    wire.allow_elements(elements_max)
    try:
        request, end = _read_request(body, version)
    except TooManyElementsError:
        raise
    except wire.MALFORMED as error:
        raise InvalidError(f"malformed request: api=produce version={version} {error}") from error
    finally:
        wire.allow_elements()
    if end != len(body):
        raise InvalidError(f"malformed request: api=produce version={version} surplus={len(body) - end}")
    return request


def _read_request(body: memoryview, version: int) -> tuple[ProduceRequest, int]:
    flexible = version >= FIRST_FLEXIBLE
    transactional_id, position = None, 0
    if flexible and not body[0]:  # null, the usual case: no function call
        position = 1
    elif version >= 3:
        transactional_id, position = wire.read_string_or_null(body, 0, flexible)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(body, position)
    count, position = wire.read_count(body, position + 6, flexible)
    topics = []
    for _ in range(count):
        name, topic_id, position = wire.read_topic_reference(body, position, flexible, version >= FIRST_BY_ID)
        partition_count, position = wire.read_count(body, position, flexible)
        tags = NO_TAGS
        if flexible:
            partitions, position = _read_flexible_partitions(body, position, partition_count)
            tags, position = wire.read_tags(body, position)
        else:
            partitions, position = _read_partitions(body, position, partition_count)
        topics.append(ProduceTopic(name, topic_id, partitions, tags, sent_count(tags) if tags else NO_COUNT))
    if flexible:
        _, position = wire.read_tags(body, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics), position


def _read_partitions(body: memoryview, position: int, count: int) -> tuple[list[ProducePartition], int]:
    partitions = []
    for _ in range(count):
        (index,) = INT32.unpack_from(body, position)
        size, position = wire.read_size(body, position + 4, False)
        end = position + max(size, 0)
        partitions.append(ProducePartition(index, None if size < 0 else body[position:end]))
        position = end
    return partitions, position


def _read_flexible_partitions(body: memoryview, position: int, count: int) -> tuple[list[ProducePartition], int]:
    """Read a partition with compact types. The hottest loop of the decoder: no function call per field if one byte is
    enough.
    """
    partitions = []
    unpack, read_uvarint, length = INT32.unpack_from, wire.read_uvarint, len(body)
    for _ in range(count):
        (index,) = unpack(body, position)
        size_plus_one, position = read_uvarint(body, position + 4)
        end = position + size_plus_one - 1 if size_plus_one else position
        if end >= length:
            raise InvalidError(f"records exceed the request: partition={index} size={size_plus_one - 1}")
        partitions.append(ProducePartition(index, body[position:end] if size_plus_one else None))
        position = end + 1
        if body[end]:
            _, position = wire.read_tags(body, end)
    return partitions, position


def refuse(request: ProduceRequest, error_code: int, message: str | None = None) -> ProduceReply:
    """A reply with the same error for every partition of `request`."""
    return ProduceReply(
        [
            ProduceTopicReply(
                topic.name,
                topic.topic_id,
                [ProducePartitionReply(p.index, error_code, error_message=message) for p in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def encode_produce_response(correlation_id: int, version: int, reply: ProduceReply) -> list[bytes | memoryview]:
    """Response header and body as buffers for the listener; fields that `version` lacks are left out."""
    flexible = version >= FIRST_FLEXIBLE
    parts = [INT32.pack(correlation_id)]
    if flexible:
        parts.append(wire.EMPTY_TAGS)
    parts.append(wire.size_prefix(len(reply.topics), flexible))
    for topic in reply.topics:
        parts.append(wire.topic_reference(topic.name, topic.topic_id, flexible, version >= FIRST_BY_ID))
        parts.append(wire.size_prefix(len(topic.partitions), flexible))
        for partition in topic.partitions:
            _write_partition(parts, partition, version)
        if flexible:
            parts.append(wire.EMPTY_TAGS)
    if version >= 1:
        parts.append(INT32.pack(reply.throttle_time_ms))
    if flexible:
        has_endpoints = version >= 10 and reply.node_endpoints
        parts.append(wire.tags({0: wire.node_endpoints(reply.node_endpoints)}) if has_endpoints else wire.EMPTY_TAGS)
    return [b"".join(parts)]


def _write_partition(parts: list[bytes], partition: ProducePartitionReply, version: int) -> None:
    flexible = version >= FIRST_FLEXIBLE
    answer = partition.index, partition.error_code, partition.base_offset
    if version >= 5:
        parts.append(_ANSWER_V5.pack(*answer, partition.log_append_time_ms, partition.log_start_offset))
    elif version >= 2:
        parts.append(_ANSWER_V2.pack(*answer, partition.log_append_time_ms))
    else:
        parts.append(_ANSWER.pack(*answer))
    if version >= 8 and not partition.record_errors and partition.error_message is None:
        parts.append(_NOTHING_WRONG[flexible])
    elif version >= 8:
        parts.append(wire.size_prefix(len(partition.record_errors), flexible))
        for error in partition.record_errors:
            parts += (INT32.pack(error.batch_index), wire.string(error.message, flexible))
            if flexible:
                parts.append(wire.EMPTY_TAGS)
        parts.append(wire.string(partition.error_message, flexible))
    if flexible:
        leader = partition.current_leader if version >= 10 else None
        parts.append(wire.tags({0: wire.leader_hint(leader)}) if leader else wire.EMPTY_TAGS)
