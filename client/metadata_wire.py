"""Metadata, version 12, with the tagged field of partition counts.

Place: under cluster.py. The schemas of libraries know no other tagged fields than Kafka's.
Invariant: a topic is described with its counts, or not at all.
Source: Kafka's MetadataRequest.json and MetadataResponse.json; protocol/partition_counts.py.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.protocol import wire
from headrace.protocol.partition_counts import COUNT_ASKED, COUNT_TAG, TopicCounts, read_counts
from headrace.protocol.wire import INT32

VERSION = 12
_TOPIC = struct.Struct(">h")
_PARTITION = struct.Struct(">hiii")


class OrderedTopic(NamedTuple):
    """`leaders` and `leader_epochs` by partition index, of the partitions that exist; leader -1: none now."""

    name: str
    counts: TopicCounts
    leaders: Mapping[int, int]
    leader_epochs: Mapping[int, int]


class ClusterMetadata(NamedTuple):
    """`nodes`: node id -> (host, port). `errors`: of topics that are not described, by name."""

    nodes: Mapping[int, tuple[str, int]]
    topics: Mapping[str, OrderedTopic]
    errors: Mapping[str, int]
    has_counts: bool


def encode_metadata_request(names: Iterable[str]) -> bytes:
    """Encode a Metadata request for these topics; they are not created."""
    topics = [wire.NULL_UUID.bytes + wire.string(name, True) + wire.EMPTY_TAGS for name in names]
    return wire.size_prefix(len(topics), True) + b"".join(topics) + b"\0\0" + COUNT_ASKED


def decode_metadata_response(body: memoryview) -> ClusterMetadata:
    """One of wire.MALFORMED for other bytes."""
    nodes: dict[int, tuple[str, int]] = {}
    count, position = wire.read_count(body, 4, True)
    for _ in range(count):
        (node_id,) = INT32.unpack_from(body, position)
        host, position = wire.read_string(body, position + 4, True)
        (port,) = INT32.unpack_from(body, position)
        _, position = wire.read_string_or_null(body, position + 4, True)
        _, position = wire.read_tags(body, position)
        nodes[node_id] = host, port
    _, position = wire.read_string_or_null(body, position, True)
    count, position = wire.read_count(body, position + 4, True)
    found = []
    for _ in range(count):
        topic, position = _read_topic(body, position)
        found.append(topic)
    tags, _ = wire.read_tags(body, position)
    counts = read_counts(tags[COUNT_TAG]) if COUNT_TAG in tags else {}
    topics = {
        each.name: OrderedTopic(each.name, counts[each.topic_id], each.leaders, each.epochs)
        for each in found
        if each.topic_id in counts
    }
    errors = {topic.name: topic.error for topic in found if topic.error}
    return ClusterMetadata(nodes, topics, errors, COUNT_TAG in tags)


class _Topic(NamedTuple):
    error: int
    name: str
    topic_id: uuid.UUID
    leaders: dict[int, int]
    epochs: dict[int, int]


def _read_topic(body: memoryview, position: int) -> tuple[_Topic, int]:
    (error,) = _TOPIC.unpack_from(body, position)
    name, position = wire.read_string_or_null(body, position + _TOPIC.size, True)
    topic_id, position = wire.read_uuid(body, position)
    count, position = wire.read_count(body, position + 1, True)
    leaders, epochs = {}, {}
    for _ in range(count):
        _, index, leaders_id, epoch = _PARTITION.unpack_from(body, position)
        leaders[index], epochs[index] = leaders_id, epoch
        position += _PARTITION.size
        for _ in ("replicas", "in-sync", "offline"):
            replicas, position = wire.read_count(body, position, True)
            position += 4 * replicas
        _, position = wire.read_tags(body, position)
    _, position = wire.read_tags(body, position + 4)
    return _Topic(error, name or "", topic_id, leaders, epochs), position
