"""Decode what a source answers: Fetch, version 4 to 15, without a copy of its records, and the topics of Metadata.

Place: under kafka_source.py. Shapes are Kafka's; agents' own encoding is protocol/fetch_codec.py.
Invariant: memory is bounded by the response's bytes and ABORTED_MAX; CorruptError for bytes that are no such response.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.compactor.links.source import (
    ABORTED_MAX,
    EPOCH_MAX,
    NO_LEADER,
    PARTITIONS_MAX,
    TEXT_CHARACTERS_MAX,
    FetchAnswer,
    Fetched,
    SourceBounds,
    SourcePartition,
    SourceTopic,
)
from headrace.protocol import wire
from headrace.storage.errors import CorruptError, InvalidError

_FIRST_FLEXIBLE = 12
FIRST_BY_ID, LAST = 13, 15
"""Versions with topic ids in place of names: a topic that was created again under its name is another one."""
_TOP = struct.Struct(">ihi")
"""Throttle time in ms, error, session."""
_PARTITION = struct.Struct(">ihqq")
_INT32, _INT64 = struct.Struct(">i"), struct.Struct(">q")
_ABORTED, _EPOCH_END = struct.Struct(">qq"), struct.Struct(">iq")
_DIVERGING_TAG = 0
_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def decode_fetch_answer(answer: memoryview, version: int, names: Mapping[uuid.UUID, str]) -> FetchAnswer:
    """The response in `answer`, which begins with its header and is writable. `names` of the topics by id, for the
    versions that do not name them.
    """
    wire.allow_elements(ABORTED_MAX)
    try:
        return _decode(answer, version, names)
    except (*wire.MALFORMED, InvalidError) as error:
        raise CorruptError(f"not a fetch response: {error}") from error
    finally:
        wire.allow_elements()


def _decode(answer: memoryview, version: int, names: Mapping[uuid.UUID, str]) -> FetchAnswer:
    flexible = version >= _FIRST_FLEXIBLE
    position = 4
    if flexible:
        _, position = wire.read_tags(answer, position)
    if version >= 7:
        throttle_ms, error, _ = _TOP.unpack_from(answer, position)
        position += _TOP.size
    else:
        (throttle_ms,), error = _INT32.unpack_from(answer, position), 0
        position += _INT32.size
    if error:
        raise InvalidError(f"fetch refused: {_code(error).name}")
    found = []
    topics, position = wire.read_count(answer, position, flexible)
    for _ in range(topics):
        topic, topic_id, position = wire.read_topic_reference(answer, position, flexible, version >= FIRST_BY_ID)
        topic = names.get(topic_id, "") if topic_id is not None else topic or ""
        partitions, position = wire.read_count(answer, position, flexible)
        for _ in range(partitions):
            one, position = _read_partition(answer, position, version, topic)
            found.append(one)
        if flexible:
            _, position = wire.read_tags(answer, position)
    return FetchAnswer(found, max(throttle_ms, 0) / 1000)


def _read_partition(answer: memoryview, position: int, version: int, topic: str) -> tuple[Fetched, int]:
    flexible = version >= _FIRST_FLEXIBLE
    index, error, high_watermark, stable = _PARTITION.unpack_from(answer, position)
    position += _PARTITION.size
    start, diverging = -1, None
    if version >= 5:
        (start,) = _INT64.unpack_from(answer, position)
        position += _INT64.size
    aborted = []
    count, position = wire.read_count_or_null(answer, position, flexible)
    for _ in range(count):
        aborted.append(_ABORTED.unpack_from(answer, position))
        position += _ABORTED.size
        if flexible:
            _, position = wire.read_tags(answer, position)
    if version >= 11:
        position += _INT32.size  # the preferred read replica: links read from leaders
    size, position = wire.read_size(answer, position, flexible)
    size = max(size, 0)
    records = answer[position : position + size]
    position += size
    if flexible:
        tags, position = wire.read_tags(answer, position)
        if _DIVERGING_TAG in tags:
            diverging = _EPOCH_END.unpack_from(tags[_DIVERGING_TAG], 0)
    bounds = SourceBounds(start, high_watermark, stable)
    return Fetched(topic, index, _code(error), bounds, aborted, records, diverging), position


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.unknown_server_error


def topic_of(topic: Any, cluster_id: str) -> SourceTopic | None:
    """The topic of an answer to Metadata; None if it does not exist, or has an impossible name."""
    name = str(topic.name)
    if topic.error_code is ErrorCode.unknown_topic_or_partition:
        return None
    if len(name) > TEXT_CHARACTERS_MAX or not _NAME.fullmatch(name):
        return None
    given = getattr(topic, "topic_id", None)
    topic_id = given if given is not None and given.int else uuid.uuid5(uuid.NAMESPACE_OID, f"{cluster_id}/{name}")
    if topic.error_code not in (ErrorCode.none, ErrorCode.leader_not_available):
        return SourceTopic(name, topic_id, (), f"the source says: {topic.error_code.name}")
    partitions = sorted(topic.partitions, key=lambda partition: int(partition.partition_index))
    if [int(each.partition_index) for each in partitions] != list(range(len(partitions))) or not partitions:
        return SourceTopic(name, topic_id, (), "the source does not list all of its partitions")
    if len(partitions) > PARTITIONS_MAX:
        return SourceTopic(name, topic_id, (), f"more than {PARTITIONS_MAX} partitions")
    return SourceTopic(name, topic_id, tuple(_partition(each) for each in partitions))


def _partition(partition: Any) -> SourcePartition:
    leader, epoch = int(partition.leader_id), int(getattr(partition, "leader_epoch", -1))
    if partition.error_code is ErrorCode.leader_not_available or leader < 0 or not -1 <= epoch < EPOCH_MAX:
        leader = NO_LEADER
    return SourcePartition(leader, epoch)
