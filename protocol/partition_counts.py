"""Partition counts as tagged fields of Metadata, Produce and Fetch, for clients that keep the order of keys.

Place: under produce_codec.py, fetch_codec.py and the Metadata handler; headrace.client writes and reads the same bytes.
Invariant: a client that asks for nothing and sends no count sees the bytes that Kafka sends.
Source: KIP-253; numbers from 10000 on, like the tagged fields of the metadata log (decisions/0051).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from headrace.protocol import wire
from headrace.protocol.wire import INT32, Tags
from headrace.storage.errors import InvalidError

COUNT_TAG = 10_000
"""Tag of a topic's partition count in Produce and Fetch: the undeleted count that the client knows, int32. Of a
Metadata request, without a value: the client asks for counts. Of a Metadata response: the counts of its topics.
"""
NO_COUNT = -1
COUNT_ASKED = wire.tags({COUNT_TAG: b""})
"""How the body of a Metadata request ends that asks: it is the only tagged field there."""

_IS_ORDERED, _IS_COMPACTED = 1, 2
_COUNTS = struct.Struct(">iib")


class TopicCounts(NamedTuple):
    """`is_ordered`: enable.ordered.delivery. `is_compacted`: cleanup.policy has compact."""

    topic_id: uuid.UUID
    initial: int
    undeleted: int
    marked: tuple[int, ...] = ()
    is_ordered: bool = True
    is_compacted: bool = False


def sent_count(tags: Tags) -> int:
    """Return the partition count of a topic in a request; NO_COUNT if the client sent none. InvalidError unless it is
    one positive int32.
    """
    value = tags.get(COUNT_TAG)
    if value is None:
        return NO_COUNT
    if len(value) != INT32.size or (count := INT32.unpack(value)[0]) < 1:
        raise InvalidError("partition count is not a positive int32")
    return int(count)


def count_tags(count: int) -> bytes:
    """The tag section of a topic in a Produce or Fetch request."""
    return wire.tags({} if count < 0 else {COUNT_TAG: INT32.pack(count)})


def asks_for_counts(body: memoryview) -> bool:
    """Return whether a Metadata request of a flexible version ends with COUNT_ASKED; no other request ends so, because
    two flags are before the tagged fields.
    """
    return body[-len(COUNT_ASKED) :] == COUNT_ASKED


def with_counts(body: bytes, topics: Sequence[bytes]) -> bytes:
    """A Metadata response of a flexible version, which ends without tagged fields, with this one. `topics`: of each,
    `counts_of_topic`."""
    assert body[-1:] == wire.EMPTY_TAGS
    return body[:-1] + wire.tags({COUNT_TAG: wire.size_prefix(len(topics), True) + b"".join(topics)})


def read_counts(value: memoryview) -> dict[uuid.UUID, TopicCounts]:
    """Read the partition counts by topic id; one of wire.MALFORMED for other bytes."""
    found = {}
    count, position = wire.read_count(value, 0, True)
    for _ in range(count):
        topic_id, position = wire.read_uuid(value, position)
        initial, undeleted, flags = _COUNTS.unpack_from(value, position)
        marked, position = wire.read_count(value, position + _COUNTS.size, True)
        indexes = struct.unpack_from(f">{marked}i", value, position)
        _, position = wire.read_tags(value, position + 4 * marked)
        found[topic_id] = TopicCounts(
            topic_id, initial, undeleted, indexes, bool(flags & _IS_ORDERED), bool(flags & _IS_COMPACTED)
        )
    return found


def counts_of_topic(topic: TopicCounts) -> bytes:
    """Return the bytes of one topic's counts."""
    flags = topic.is_ordered * _IS_ORDERED | topic.is_compacted * _IS_COMPACTED
    marked = wire.size_prefix(len(topic.marked), True) + struct.pack(f">{len(topic.marked)}i", *topic.marked)
    return topic.topic_id.bytes + _COUNTS.pack(topic.initial, topic.undeleted, flags) + marked + wire.EMPTY_TAGS
