"""The client's side of the four requests that simulated clients send.

Two versions each of Produce and Fetch: the last that names topics by name, and one that uses ids.
Versions and clients in all their variety are tests/compat's business.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.protocol import wire
from tests.simulation.metadata import Place, Topic

if TYPE_CHECKING:
    from tests.simulation.fetch_session import Ask

PRODUCE, FETCH, LIST_OFFSETS, INIT_PRODUCER_ID = 0, 1, 2, 22
PRODUCE_BY_NAME, PRODUCE_BY_ID = 9, 13
FETCH_BY_NAME, FETCH_BY_ID = 12, 17
LIST_OFFSETS_VERSION = 5
INIT_PRODUCER_ID_VERSION = 1

_FLEXIBLE_HEADER_BYTES = 5
_HEADER_BYTES = 4


class ProduceAnswer(NamedTuple):
    code: int
    base_offset: int
    append_time_ms: int


class FetchAnswer(NamedTuple):
    code: int
    high_watermark: int
    log_start_offset: int
    records: memoryview


class Position(NamedTuple):
    """The place where a reader wants to continue, and how many bytes it takes."""

    offset: int
    max_bytes: int


class ListedOffset(NamedTuple):
    code: int
    timestamp: int
    offset: int


def encode_produce(batches: Mapping[Place, bytes], *, by_id: bool, acks: int, timeout_ms: int) -> bytes:
    """One batch per partition."""
    parts = [wire.string(None, True), struct.pack(">hi", acks, timeout_ms)]
    topics = _by_topic(batches)
    parts.append(wire.size_prefix(len(topics), True))
    for topic, places in topics.items():
        parts += (_reference(topic, by_id), wire.size_prefix(len(places), True))
        for place in places:
            data = batches[place]
            parts += (wire.INT32.pack(place.index), wire.size_prefix(len(data), True), data, wire.EMPTY_TAGS)
        parts.append(wire.EMPTY_TAGS)
    parts.append(wire.EMPTY_TAGS)
    return b"".join(parts)


def read_produce(frame: bytes, places: Sequence[Place], *, by_id: bool) -> dict[Place, ProduceAnswer]:
    """The answers to a request for `places`."""
    data, answers = memoryview(frame), {}
    known = _known(places, by_id)
    count, at = wire.read_count(data, _FLEXIBLE_HEADER_BYTES, True)
    for _ in range(count):
        name, topic_id, at = wire.read_topic_reference(data, at, True, by_id)
        partitions, at = wire.read_count(data, at, True)
        for _ in range(partitions):
            index, code, base_offset, append_time_ms, _ = struct.unpack_from(">ihqqq", data, at)
            errors, at = wire.read_count(data, at + 30, True)
            assert not errors, "no batch of ours has a wrong record"
            _, at = wire.read_string_or_null(data, at, True)
            _, at = wire.read_tags(data, at)
            answers[known[name or topic_id, index]] = ProduceAnswer(code, base_offset, append_time_ms)
        _, at = wire.read_tags(data, at)
    return answers


def encode_fetch(ask: Ask, *, by_id: bool, max_wait_ms: int, min_bytes: int, max_bytes: int) -> bytes:
    """A Fetch request; `ask` says of what."""
    parts = [] if by_id else [wire.INT32.pack(-1)]
    parts.append(struct.pack(">iiibii", max_wait_ms, min_bytes, max_bytes, 0, ask.session_id, ask.epoch))
    topics = _by_topic(ask.positions)
    parts.append(wire.size_prefix(len(topics), True))
    for topic, places in topics.items():
        parts += (_reference(topic, by_id), wire.size_prefix(len(places), True))
        for place in places:
            offset, partition_max_bytes = ask.positions[place]
            parts += (struct.pack(">iiqiqi", place.index, -1, offset, -1, -1, partition_max_bytes), wire.EMPTY_TAGS)
        parts.append(wire.EMPTY_TAGS)
    forgotten = _by_topic(dict.fromkeys(ask.forgotten))
    parts.append(wire.size_prefix(len(forgotten), True))
    for topic, places in forgotten.items():
        indexes = [wire.INT32.pack(place.index) for place in places]
        parts += (_reference(topic, by_id), wire.size_prefix(len(places), True), *indexes, wire.EMPTY_TAGS)
    parts += (wire.string("", True), wire.EMPTY_TAGS)
    return b"".join(parts)


def read_fetch(frame: bytes, places: Iterable[Place], *, by_id: bool) -> tuple[int, int, dict[Place, FetchAnswer]]:
    """The top-level error, the session's id, and the answers for those of `places` that are in the response."""
    data, answers = memoryview(frame), {}
    known = _known(places, by_id)
    error, session_id = struct.unpack_from(">hi", data, _FLEXIBLE_HEADER_BYTES + 4)
    count, at = wire.read_count(data, _FLEXIBLE_HEADER_BYTES + 10, True)
    for _ in range(count):
        name, topic_id, at = wire.read_topic_reference(data, at, True, by_id)
        partitions, at = wire.read_count(data, at, True)
        for _ in range(partitions):
            index, code, high_watermark, _, log_start = struct.unpack_from(">ihqqq", data, at)
            aborted, at = wire.read_size(data, at + 30, True)
            assert aborted <= 0, "there are no transactions"
            size, at = wire.read_size(data, at + 4, True)
            records = data[at : at + max(size, 0)]
            _, at = wire.read_tags(data, at + max(size, 0))
            answers[known[name or topic_id, index]] = FetchAnswer(code, high_watermark, log_start, records)
        _, at = wire.read_tags(data, at)
    return error, session_id, answers


def encode_list_offsets(place: Place, timestamp: int) -> bytes:
    """One partition, by name."""
    name = wire.string(place.topic.name, False)
    partition = struct.pack(">iiiq", 1, place.index, -1, timestamp)
    return struct.pack(">ibi", -1, 0, 1) + name + partition


def read_list_offsets(frame: bytes) -> ListedOffset:
    """The answer for the one partition."""
    data = memoryview(frame)
    _, at = wire.read_string(data, _HEADER_BYTES + 8, False)
    code, timestamp, offset = struct.unpack_from(">hqq", data, at + 8)
    return ListedOffset(code, timestamp, offset)


def encode_init_producer_id() -> bytes:
    return struct.pack(">hi", -1, 60_000)


def read_init_producer_id(frame: bytes) -> tuple[int, int]:
    """(error code, producer id)."""
    code, producer_id = struct.unpack_from(">hq", frame, _HEADER_BYTES + 4)
    return code, producer_id


def _by_topic(places: Mapping[Place, object]) -> dict[Topic, list[Place]]:
    topics: dict[Topic, list[Place]] = {}
    for place in places:
        topics.setdefault(place.topic, []).append(place)
    return topics


def _reference(topic: Topic, by_id: bool) -> bytes:
    return wire.topic_reference(topic.name, topic.topic_id, True, by_id)


def _known(places: Iterable[Place], by_id: bool) -> dict[tuple[object, int], Place]:
    return {(place.topic.topic_id if by_id else place.topic.name, place.index): place for place in places}
