"""Fetch, version 13, without a session, with the partition count of each topic.

Place: between fetching.py and the wire.
Source: Kafka's FetchRequest.json and FetchResponse.json; protocol/partition_counts.py.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from headrace.protocol import wire
from headrace.protocol.partition_counts import count_tags
from headrace.protocol.wire import INT32

VERSION = 13
_HEAD = struct.Struct(">iiiibii")
_POSITION = struct.Struct(">iiqiqi")
_ANSWER = struct.Struct(">ihqqq")
_CONSUMER, _NO_SESSION, _NO_EPOCH = -1, 0, -1


class TopicPositions(NamedTuple):
    """`positions`: (partition, offset)."""

    topic_id: uuid.UUID
    partition_count: int
    positions: list[tuple[int, int]]


class FetchedPartition(NamedTuple):
    """`records` is empty if there is an error."""

    topic_id: uuid.UUID
    partition: int
    error_code: int
    high_watermark: int
    log_start: int
    records: memoryview


def encode_fetch_request(
    topics: Iterable[TopicPositions], *, max_wait_ms: int, max_bytes: int, partition_bytes: int
) -> bytes:
    """The body. Answered as soon as there is anything."""
    parts = [_topic(topic, partition_bytes) for topic in topics]
    head = _HEAD.pack(_CONSUMER, max_wait_ms, 1, max_bytes, 0, _NO_SESSION, _NO_EPOCH)
    nothing_forgotten, no_rack = wire.size_prefix(0, True), wire.string("", True)
    return head + wire.size_prefix(len(parts), True) + b"".join(parts) + nothing_forgotten + no_rack + wire.EMPTY_TAGS


def decode_fetch_response(body: memoryview) -> tuple[int, list[FetchedPartition]]:
    """(error code of the whole, partitions); one of wire.MALFORMED for other bytes."""
    (code,) = struct.unpack_from(">h", body, 4)
    found = []
    topics, position = wire.read_count(body, 10, True)
    for _ in range(topics):
        topic_id, position = wire.read_uuid(body, position)
        count, position = wire.read_count(body, position, True)
        for _ in range(count):
            one, position = _read_partition(body, position, topic_id)
            found.append(one)
        _, position = wire.read_tags(body, position)
    return code, found


def _topic(topic: TopicPositions, partition_bytes: int) -> bytes:
    rows = [
        _POSITION.pack(index, _NO_EPOCH, offset, _NO_EPOCH, -1, partition_bytes) + wire.EMPTY_TAGS
        for index, offset in topic.positions
    ]
    return topic.topic_id.bytes + wire.size_prefix(len(rows), True) + b"".join(rows) + count_tags(topic.partition_count)


def _read_partition(body: memoryview, position: int, topic_id: uuid.UUID) -> tuple[FetchedPartition, int]:
    index, code, high_watermark, _, log_start = _ANSWER.unpack_from(body, position)
    aborted, position = wire.read_count_or_null(body, position + _ANSWER.size, True)
    for _ in range(aborted):
        _, position = wire.read_tags(body, position + 16)
    size, position = wire.read_size(body, position + INT32.size, True)
    end = position + max(size, 0)
    _, after = wire.read_tags(body, end)
    return FetchedPartition(topic_id, index, code, high_watermark, log_start, body[position:end]), after
