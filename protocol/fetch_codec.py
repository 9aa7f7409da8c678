"""Codec of Fetch (API key 1), versions 4-18, hand-written because it is a hot path and must not copy record bytes.

Place: first and last step of the read path: a request's body becomes fields, a reply becomes a
gather list that refers to the record bytes as they were read.
Invariant: an empty partition has zero-length records, never null (librdkafka and kafka-python
fail on null). Every length is checked before it is used.
Source: Kafka's FetchRequest.json and FetchResponse.json; KIP-227 (sessions, v7), KIP-392 (rack, v11),
KIP-516 (topic ids, v13), KIP-903 (replica state, v15), KIP-951 (leader hints: v12, endpoints v16).
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

FIRST_FLEXIBLE = 12
FIRST_BY_ID = 13
FIRST_REPLICA_STATE = 15

_CLUSTER_ID_TAG = 0
_REPLICA_STATE_TAG = 1
_LIMITS = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_POSITION_V4 = struct.Struct(">iqi")
_POSITION_V5 = struct.Struct(">iqqi")
_POSITION_V9 = struct.Struct(">iiqqi")
_POSITION_V12 = struct.Struct(">iiqiqi")
_ANSWER_V4 = struct.Struct(">ihqq")
_ANSWER_V5 = struct.Struct(">ihqqq")
_PLAIN_V12 = struct.Struct(">ihqqqBi")
_TWO_INT64 = struct.Struct(">qq")
_EPOCH_END = struct.Struct(">iqB")
_USUAL_END = b"\1\1\0"
"""No forgotten topics, no rack, no tags: the end of most requests from version 12 on."""


@dataclass(slots=True)
class FetchPartition:
    """The fetch position of one partition. -1 for fields that the version lacks or the client did not set.

    `partition_count` is the one that the client sent for the topic.
    """

    index: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    partition_count: int = NO_COUNT


@dataclass(slots=True)
class FetchTopic:
    """`name` up to v12, `topic_id` from v13; the other is None. `tags` are the topic's tagged fields, unread."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[FetchPartition]
    tags: Tags = field(default_factory=dict)


@dataclass(slots=True)
class ForgottenTopic:
    """Partitions that an incremental fetch removes from its session."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[int]


@dataclass(slots=True)
class FetchRequest:
    """`session_id` 0 and `session_epoch` -1 for a client without a session; `replica_id` -1 for a consumer."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    topics: list[FetchTopic]
    session_id: int = 0
    session_epoch: int = -1
    forgotten: list[ForgottenTopic] = field(default_factory=list)
    rack_id: str = ""
    replica_id: int = -1
    cluster_id: str | None = None


@dataclass(slots=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int


@dataclass(slots=True)
class DivergingEpoch:
    """The end offset of an epoch: the consumer's log diverged at this offset."""

    epoch: int
    end_offset: int


@dataclass(slots=True)
class FetchPartitionReply:
    """`records`: complete batches in offset order, as buffers that are sent unchanged; may be empty."""

    index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[bytes | memoryview] = ()
    aborted_transactions: list[AbortedTransaction] | None = None
    preferred_read_replica: int = -1
    diverging_epoch: DivergingEpoch | None = None
    current_leader: LeaderHint | None = None


@dataclass(slots=True)
class FetchTopicReply:
    """The topic, with a name or an id as in the request."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[FetchPartitionReply]


@dataclass(slots=True)
class FetchReply:
    """`error_code` and `session_id` exist from v7; `node_endpoints` from v16."""

    topics: list[FetchTopicReply]
    error_code: int = 0
    session_id: int = 0
    throttle_time_ms: int = 0
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)


def decode_fetch(body: memoryview, version: int, elements_max: int = REQUEST_ELEMENTS_MAX) -> FetchRequest:
    """The request in `body`; InvalidError if it is malformed or has surplus bytes, TooManyElementsError beyond
    `elements_max` topics and partitions."""
    wire.allow_elements(elements_max)
    try:
        request, end = _read_request(body, version)
    except TooManyElementsError:
        raise
    except wire.MALFORMED as error:
        raise InvalidError(f"malformed request: api=fetch version={version} {error}") from error
    finally:
        wire.allow_elements()
    if end != len(body):
        raise InvalidError(f"malformed request: api=fetch version={version} surplus={len(body) - end}")
    return request


def _read_request(body: memoryview, version: int) -> tuple[FetchRequest, int]:
    flexible = version >= FIRST_FLEXIBLE
    replica_id, position = -1, 0
    if version < FIRST_REPLICA_STATE:
        (replica_id,) = INT32.unpack_from(body, 0)
        position = 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(body, position)
    position += _LIMITS.size
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(body, position)
        position += _SESSION.size
    topics, position = _read_topics(body, position, version)
    request = FetchRequest(max_wait_ms, min_bytes, max_bytes, isolation_level, topics, session_id, session_epoch)
    request.replica_id = replica_id
    if flexible and body[position:] == _USUAL_END:
        return request, len(body)
    if version >= 7:
        request.forgotten, position = _read_forgotten(body, position, version)
    if version >= 11:
        request.rack_id, position = wire.read_string(body, position, flexible)
    if flexible:
        tags, position = wire.read_tags(body, position)
        _take_tags(request, tags)
    return request, position


def _read_topics(body: memoryview, position: int, version: int) -> tuple[list[FetchTopic], int]:
    flexible = version >= FIRST_FLEXIBLE
    count, position = wire.read_count(body, position, flexible)
    topics = []
    for _ in range(count):
        name, topic_id, position = wire.read_topic_reference(body, position, flexible, version >= FIRST_BY_ID)
        partitions, position = _read_partitions(body, position, version)
        tags = NO_TAGS
        if flexible:
            tags, position = wire.read_tags(body, position)
            if tags and (count := sent_count(tags)) != NO_COUNT:
                for partition in partitions:
                    partition.partition_count = count
        topics.append(FetchTopic(name, topic_id, partitions, tags))
    return topics, position


def _read_partitions(body: memoryview, position: int, version: int) -> tuple[list[FetchPartition], int]:
    flexible = version >= FIRST_FLEXIBLE
    count, position = wire.read_count(body, position, flexible)
    partitions = []
    for _ in range(count):
        epoch = last_epoch = log_start = -1
        if version >= 12:
            index, epoch, offset, last_epoch, log_start, size = _POSITION_V12.unpack_from(body, position)
            position += _POSITION_V12.size
        elif version >= 9:
            index, epoch, offset, log_start, size = _POSITION_V9.unpack_from(body, position)
            position += _POSITION_V9.size
        elif version >= 5:
            index, offset, log_start, size = _POSITION_V5.unpack_from(body, position)
            position += _POSITION_V5.size
        else:
            index, offset, size = _POSITION_V4.unpack_from(body, position)
            position += _POSITION_V4.size
        if flexible and not body[position]:  # no tags, the usual case: no function call
            position += 1
        elif flexible:
            _, position = wire.read_tags(body, position)
        partitions.append(FetchPartition(index, offset, size, epoch, last_epoch, log_start))
    return partitions, position


def _read_forgotten(body: memoryview, position: int, version: int) -> tuple[list[ForgottenTopic], int]:
    flexible = version >= FIRST_FLEXIBLE
    topic_count, position = wire.read_count(body, position, flexible)
    forgotten = []
    for _ in range(topic_count):
        name, topic_id, position = wire.read_topic_reference(body, position, flexible, version >= FIRST_BY_ID)
        count, position = wire.read_count(body, position, flexible)
        partitions = list(struct.unpack_from(f">{count}i", body, position))
        position += 4 * count
        if flexible:
            _, position = wire.read_tags(body, position)
        forgotten.append(ForgottenTopic(name, topic_id, partitions))
    return forgotten, position


def _take_tags(request: FetchRequest, tags: Tags) -> None:
    if _CLUSTER_ID_TAG in tags:
        request.cluster_id, _ = wire.read_string_or_null(tags[_CLUSTER_ID_TAG], 0, True)
    if _REPLICA_STATE_TAG in tags:
        (request.replica_id,) = INT32.unpack_from(tags[_REPLICA_STATE_TAG], 0)


def encode_fetch_response(correlation_id: int, version: int, reply: FetchReply) -> list[bytes | memoryview]:
    """Response header and body as a gather list; record buffers are part of it unchanged."""
    flexible = version >= FIRST_FLEXIBLE
    out: list[bytes | memoryview] = []
    fields = bytearray(INT32.pack(correlation_id))
    if flexible:
        fields += wire.EMPTY_TAGS
    fields += INT32.pack(reply.throttle_time_ms)
    if version >= 7:
        fields += struct.pack(">hi", reply.error_code, reply.session_id)
    fields += wire.size_prefix(len(reply.topics), flexible)
    for topic in reply.topics:
        fields += wire.topic_reference(topic.name, topic.topic_id, flexible, version >= FIRST_BY_ID)
        fields += wire.size_prefix(len(topic.partitions), flexible)
        for partition in topic.partitions:
            _write_partition(fields, partition, version)
            size = sum(map(len, partition.records))
            fields += wire.size_prefix(size, flexible)
            if size:
                out.append(bytes(fields))
                out += partition.records
                fields.clear()
            if flexible:
                fields += _partition_tags(partition)
        if flexible:
            fields += wire.EMPTY_TAGS
    if flexible:
        has_endpoints = version >= 16 and reply.node_endpoints
        fields += wire.tags({0: wire.node_endpoints(reply.node_endpoints)}) if has_endpoints else wire.EMPTY_TAGS
    out.append(bytes(fields))
    return out


def _write_partition(fields: bytearray, partition: FetchPartitionReply, version: int) -> None:
    """All fields before the records."""
    flexible = version >= FIRST_FLEXIBLE
    p = partition
    if flexible and p.aborted_transactions is None:
        fields += _PLAIN_V12.pack(
            p.index,
            p.error_code,
            p.high_watermark,
            p.last_stable_offset,
            p.log_start_offset,
            0,
            p.preferred_read_replica,
        )
        return
    if version >= 5:
        fields += _ANSWER_V5.pack(p.index, p.error_code, p.high_watermark, p.last_stable_offset, p.log_start_offset)
    else:
        fields += _ANSWER_V4.pack(p.index, p.error_code, p.high_watermark, p.last_stable_offset)
    aborted = p.aborted_transactions
    fields += wire.size_prefix(-1 if aborted is None else len(aborted), flexible)
    for transaction in aborted or ():
        fields += _TWO_INT64.pack(transaction.producer_id, transaction.first_offset)
        if flexible:
            fields += wire.EMPTY_TAGS
    if version >= 11:
        fields += INT32.pack(p.preferred_read_replica)


def _partition_tags(partition: FetchPartitionReply) -> bytes:
    if partition.diverging_epoch is None and partition.current_leader is None:
        return wire.EMPTY_TAGS
    fields = {}
    if end := partition.diverging_epoch:
        fields[0] = _EPOCH_END.pack(end.epoch, end.end_offset, 0)
    if partition.current_leader:
        fields[1] = wire.leader_hint(partition.current_leader)
    return wire.tags(fields)
