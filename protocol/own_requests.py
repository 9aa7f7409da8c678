"""The requests on partition counts that only Headrace has: SetPartitionCount, ScaleTopic.

Place: between agent/topics/counts and `headrace topics alter`, under private API keys that are not advertised.
Kafka's CreatePartitions keeps its meaning: it refuses lower counts. Request header v1, response header v0,
big-endian, strings with an int16 length (-1: null). The names of all requests, for people, are here, too.
SetPartitionCount, version 0: a topic's count of partitions, also a lower one than it has.
    request   topic string · count int32 · timeout_ms int32 · validate_only int8
    response  error_code int16 · error_message nullable string
ScaleTopic, version 0: a topic gets twice or half its partitions, with its keys in order for unmodified clients.
    request   topic string · step int8 · force int8 · validate_only int8 · quiet_ms int32 · timeout_ms int32
              partition_count int32
    response  error_code int16 · error_message nullable string · partition_count int32 · parents int32
              boundaries int32 · [readers]: group_id string · kind nullable string · state string · late int32
Invariant: see protocol/wire.py. Both sides use this module, so what one writes the other reads.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from headrace.protocol import wire
from headrace.protocol.api_versions import APIS
from headrace.protocol.link_requests import LINKS_KEY
from headrace.protocol.ordered_requests import GROUP_POSITION_KEY, LEADER_EPOCHS_KEY
from headrace.protocol.wire import INT16, INT32, MALFORMED
from headrace.storage.errors import InvalidError

SET_PARTITION_COUNT_KEY = 31_293
"""API key below the keys between agents, and those of clients that keep the order."""
COUNT_VERSION = 0

_HEADER = struct.Struct(">hhi")
_COUNT_REST = struct.Struct(">ii?")


class CountRequest(NamedTuple):
    """`validate_only`: check it, change nothing."""

    topic: str
    partition_count: int
    timeout_ms: int
    validate_only: bool = False


class CountResponse(NamedTuple):
    """`error_code` 0: the count is in force, and the agent that answered shows it."""

    error_code: int
    message: str | None


def encode_count_request(request: CountRequest, client_id: str, correlation_id: int) -> bytes:
    """The frame with its length."""
    header = _HEADER.pack(SET_PARTITION_COUNT_KEY, COUNT_VERSION, correlation_id) + wire.string(client_id, False)
    frame = header + wire.string(request.topic, False) + _COUNT_REST.pack(*request[1:])
    return INT32.pack(len(frame)) + frame


def decode_count_request(body: memoryview) -> CountRequest:
    """InvalidError for other bytes."""
    try:
        topic, position = wire.read_string(body, 0, False)
        count, timeout_ms, validate_only = _COUNT_REST.unpack(body[position:])
    except MALFORMED as error:
        raise InvalidError(f"malformed request for a partition count: {error}") from error
    return CountRequest(topic, count, timeout_ms, validate_only)


def encode_count_response(correlation_id: int, response: CountResponse) -> bytes:
    """The frame after its length."""
    return INT32.pack(correlation_id) + INT16.pack(response.error_code) + wire.string(response.message, False)


def decode_count_response(frame: memoryview) -> CountResponse:
    """InvalidError for other bytes."""
    try:
        (code,) = INT16.unpack_from(frame, INT32.size)
        message, _ = wire.read_string_or_null(frame, INT32.size + INT16.size, False)
    except MALFORMED as error:
        raise InvalidError(f"malformed response to a partition count: {error}") from error
    return CountResponse(code, message)


SCALE_TOPIC_KEY = 31_292
"""Next to SetPartitionCount."""
VERSION = 0

_REST = struct.Struct(">b??iii")
_COUNTS = struct.Struct(">iii")


class ScaleStep(enum.IntEnum):
    """What is asked for. LOOK changes nothing: how far the last change is."""

    HALVE = -1
    LOOK = 0
    DOUBLE = 1
    CANCEL = 2
    """Step that cancels a halving, as long as no child is merged."""


class ScaleRequest(NamedTuple):
    """`force`: also with readers that do not keep the order. `quiet_ms`: metadata.max.age.ms of the producers.

    `quiet_ms` 0: Kafka's default. `validate_only`: check it, change nothing. `partition_count`: the one after it, so
    that a request that is sent again changes nothing more; 0: not named.
    """

    topic: str
    step: ScaleStep
    force: bool = False
    validate_only: bool = False
    quiet_ms: int = 0
    timeout_ms: int = 30_000
    partition_count: int = 0


class ShownReader(NamedTuple):
    """A group that reads the topic. `kind` None: it has offsets and was never a group with members.

    `late`: partitions with a boundary that the group has not committed up to; while the topic halves, children with
    records that it has not committed.
    """

    group_id: str
    kind: str | None
    state: str
    late: int


class ScaleResponse(NamedTuple):
    """`partition_count`: as it is now. `parents`: partitions that were split in two; so many have a boundary. While the
    topic halves they are the parents of children that go, and `boundaries` the number of children that are merged.

    Counts are -1 in a refusal that knows none.
    """

    error_code: int
    message: str | None
    partition_count: int = -1
    parents: int = 0
    boundaries: int = 0
    readers: tuple[ShownReader, ...] = ()


GROUPS_OF_MESSAGE = "groups="
"""Text before the names of groups in the message of a refusal; nothing follows them."""
_NAMED_MAX = 10


def some_groups(groups: Sequence[str]) -> str:
    """The first of them, for the end of a message."""
    shown = GROUPS_OF_MESSAGE + ", ".join(groups[:_NAMED_MAX])
    return shown if len(groups) <= _NAMED_MAX else f"{shown}, ... ({len(groups)})"


def encode_scale_request(request: ScaleRequest, client_id: str, correlation_id: int) -> bytes:
    """The frame with its length."""
    header = _HEADER.pack(SCALE_TOPIC_KEY, VERSION, correlation_id) + wire.string(client_id, False)
    frame = header + wire.string(request.topic, False) + _REST.pack(*request[1:])
    return INT32.pack(len(frame)) + frame


def decode_scale_request(body: memoryview) -> ScaleRequest:
    """InvalidError for other bytes."""
    try:
        topic, position = wire.read_string(body, 0, False)
        step, *rest = _REST.unpack(body[position:])
        return ScaleRequest(topic, ScaleStep(step), *rest)
    except (*MALFORMED, ValueError) as error:  # ValueError: another step
        raise InvalidError(f"malformed request to scale a topic: {error}") from error


def encode_scale_response(correlation_id: int, response: ScaleResponse) -> bytes:
    """The frame after its length."""
    parts = [INT32.pack(correlation_id), INT16.pack(response.error_code), wire.string(response.message, False)]
    parts += [_COUNTS.pack(response.partition_count, response.parents, response.boundaries)]
    parts += [INT32.pack(len(response.readers))]
    for reader in response.readers:
        texts = (reader.group_id, reader.kind, reader.state)
        parts += [*(wire.string(text, False) for text in texts), INT32.pack(reader.late)]
    return b"".join(parts)


def decode_scale_response(frame: memoryview) -> ScaleResponse:
    """InvalidError for other bytes."""
    try:
        (code,) = INT16.unpack_from(frame, INT32.size)
        message, at = wire.read_string_or_null(frame, INT32.size + INT16.size, False)
        count, parents, boundaries = _COUNTS.unpack_from(frame, at)
        (length,) = INT32.unpack_from(frame, at + _COUNTS.size)
        at += _COUNTS.size + INT32.size
        readers = []
        for _ in range(length):
            group_id, at = wire.read_string(frame, at, False)
            kind, at = wire.read_string_or_null(frame, at, False)
            state, at = wire.read_string(frame, at, False)
            readers.append(ShownReader(group_id, kind, state, *INT32.unpack_from(frame, at)))
            at += INT32.size
    except MALFORMED as error:
        raise InvalidError(f"malformed response to scaling a topic: {error}") from error
    return ScaleResponse(code, message, count, parents, boundaries, tuple(readers))


_OWN = {
    LINKS_KEY: "Links",
    GROUP_POSITION_KEY: "ConsumerGroupPosition",
    LEADER_EPOCHS_KEY: "PartitionLeaderEpochsForPartitions",
    SCALE_TOPIC_KEY: "ScaleTopic",
    SET_PARTITION_COUNT_KEY: "SetPartitionCount",
}


def api_name(api_key: int) -> str:
    """`Produce` for 0; the number for one that is not known."""
    known = APIS.get(api_key)
    return _OWN.get(api_key, str(api_key)) if known is None else known.name
