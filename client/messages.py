"""Encodes the client's requests that aiokafka does not have, and decodes their responses.

Place: between cluster.py and aiokafka's connection, which adds the length and matches responses. Group requests and
offsets are sent by cluster.py's `call`. Metadata, version 12, has the tagged field of partition counts, which the
schemas of libraries do not know.
Invariant of a body: the response is the bytes after its header.
Source: KIP-482 for flexible headers.
Invariant of Metadata: a topic is described with its counts, or not at all.
Source: Kafka's MetadataRequest.json and MetadataResponse.json; protocol/partition_counts.py.
"""

from __future__ import annotations

import functools
import importlib
import io
import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kio.serial import entity_reader, entity_writer

from headrace.protocol import wire
from headrace.protocol.partition_counts import COUNT_ASKED, COUNT_TAG, TopicCounts, read_counts
from headrace.protocol.typed import schema
from headrace.protocol.wire import INT32


class _Encoded(NamedTuple):
    data: bytes

    def encode(self) -> bytes:
        return self.data


class _ResponseHeader(NamedTuple):
    correlation_id: int


class Frame:
    """`flexible`: both headers have tagged fields."""

    def __init__(self, api_key: int, version: int, body: bytes, *, flexible: bool) -> None:
        self._api_key, self._version, self._body, self._flexible = api_key, version, body, flexible
        self.RESPONSE_TYPE = self

    def prepare(self, versions: object) -> Frame:
        """The version is chosen already."""
        return self

    def build_request_header(self, *, correlation_id: int, client_id: str) -> _Encoded:
        """Header v2 if flexible, else v1."""
        head = struct.pack(">hhi", self._api_key, self._version, correlation_id) + wire.string(client_id, False)
        return _Encoded(head + wire.EMPTY_TAGS if self._flexible else head)

    def encode(self) -> bytes:
        """The body."""
        return self._body

    def parse_response_header(self, stream: io.BytesIO) -> _ResponseHeader:
        """Header v1 if flexible, else v0."""
        (correlation_id,) = INT32.unpack(stream.read(4))
        if self._flexible:
            stream.read(1)  # agents send no tagged fields in it
        return _ResponseHeader(correlation_id)

    def decode(self, stream: io.BytesIO) -> Any:
        """Return what is left."""
        return memoryview(stream.getvalue())[stream.tell() :]


class ApiMessage:
    """One API in one version. `make` builds the entities of its request by their class names."""

    def __init__(self, api_key: int, version: int) -> None:
        found = schema(api_key, version)
        self.api_key, self.version, self.flexible = api_key, version, found.flexible
        self._request_type = found.request_type
        self._module = importlib.import_module(found.request_type.__module__)
        """It has the classes of all parts of the request."""
        self._write = entity_writer(found.request_type)
        self._read = entity_reader(found.response_type)

    def make(self, name: str, /, **values: Any) -> Any:
        """A part of the request."""
        return getattr(self._module, name)(**values)

    def encode(self, **values: Any) -> bytes:
        """The request's body."""
        body = io.BytesIO()
        self._write(body, self._request_type(**values))
        return body.getvalue()

    def decode(self, body: memoryview) -> Any:
        """The response's entity."""
        return self._read(bytes(body), 0)[0]


@functools.cache
def message(api_key: int, version: int) -> ApiMessage:
    """Loaded once."""
    return ApiMessage(api_key, version)


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
