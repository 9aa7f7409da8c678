"""KIP-253's two requests: PartitionLeaderEpochsForPartitions and ConsumerGroupPosition, version 0.

Place: between the handlers of an agent and headrace.client, under private API keys that are not advertised.
Both have request header v1 and response header v0; strings have an int16 length, arrays an int32 count, and there are
no tagged fields. docs/understand/ORDERED_REQUESTS.md describes them byte by byte.
Invariant: see protocol/wire.py. Both sides use this module, so what one writes the other reads.
Source: KIP-253, protocol changes 3 to 5; `source` and the epochs per ancestor are additions (decisions/0049).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from headrace.protocol import wire
from headrace.protocol.request import REQUEST_ELEMENTS_MAX
from headrace.protocol.wire import INT16, INT32
from headrace.storage.errors import InvalidError, TooManyElementsError

GROUP_POSITION_KEY = 31_295
LEADER_EPOCHS_KEY = 31_294
"""API key below the keys between agents."""
CLIENT_KEYS = frozenset((GROUP_POSITION_KEY, LEADER_EPOCHS_KEY))
VERSION = 0
NO_POSITION = -1
"""Not yet included: no member has reported one to this coordinator in this generation."""
NO_EPOCH = -1

T = TypeVar("T")
_POSITION = struct.Struct(">i?q")
_EPOCHS = struct.Struct(">ihiii")
_PAIR = struct.Struct(">ii")
_Item = Callable[[memoryview, int], tuple[T, int]]

Topics = Mapping[str, Sequence[T]]


class PartitionPosition(NamedTuple):
    """Position in a partition. In a request `need_position` asks for the group's position; `position` reports the
    member's own. In a response `need_position` says that a member waits for the position, and `position` is the
    group's.
    """

    partition: int
    need_position: bool
    position: int = NO_POSITION


class GroupPositionRequest(NamedTuple):
    """`generation`: of a classic group; of a consumer group the member epoch."""

    group_id: str
    generation: int
    member_id: str
    topics: Topics[PartitionPosition]


class GroupPositionResponse(NamedTuple):
    """`topics` has the partitions that any member waits for, as far as they exist."""

    error_code: int
    topics: Topics[PartitionPosition]
    throttle_time_ms: int = 0


class PartitionEpochs(NamedTuple):
    """`after_creation`: of `source`, before it rose when this partition was created; both -1 if it was not.

    `before_deletion`: of each ancestor, before it rose when this partition was marked; empty unless it is marked.
    `heir_before_deletion` is the one of the ancestor that has its keys now, -1 unless it is marked: the seed's field.
    """

    partition: int
    error_code: int = 0
    source: int = -1
    after_creation: int = NO_EPOCH
    heir_before_deletion: int = NO_EPOCH
    before_deletion: Mapping[int, int] = MappingProxyType({})


# -- ConsumerGroupPosition


def encode_position_request(request: GroupPositionRequest) -> bytes:
    """The body."""
    head = wire.string(request.group_id, False) + INT32.pack(request.generation)
    return head + wire.string(request.member_id, False) + _topics(request.topics, _position)


def decode_position_request(body: memoryview, elements_max: int = REQUEST_ELEMENTS_MAX) -> GroupPositionRequest:
    """InvalidError for other bytes, or more than `elements_max` topics and partitions."""

    def read() -> tuple[GroupPositionRequest, int]:
        group_id, position = wire.read_string(body, 0, False)
        (generation,) = INT32.unpack_from(body, position)
        member_id, position = wire.read_string(body, position + 4, False)
        topics, position = _read_topics(body, position, _read_position)
        return GroupPositionRequest(group_id, generation, member_id, topics), position

    return _decoded(body, read, elements_max)


def encode_position_response(response: GroupPositionResponse) -> bytes:
    """The body."""
    topics = _topics(response.topics, _position)
    return INT32.pack(response.throttle_time_ms) + topics + INT16.pack(response.error_code)


def decode_position_response(body: memoryview) -> GroupPositionResponse:
    """InvalidError for other bytes."""

    def read() -> tuple[GroupPositionResponse, int]:
        (throttle,) = INT32.unpack_from(body, 0)
        topics, position = _read_topics(body, 4, _read_position)
        (code,) = INT16.unpack_from(body, position)
        return GroupPositionResponse(code, topics, throttle), position + 2

    return _decoded(body, read)


# -- PartitionLeaderEpochsForPartitions


def encode_epochs_request(topics: Topics[int]) -> bytes:
    """The body."""
    return _topics(topics, INT32.pack)


def decode_epochs_request(body: memoryview, elements_max: int = REQUEST_ELEMENTS_MAX) -> Topics[int]:
    """InvalidError for other bytes, or more than `elements_max` topics and partitions."""

    def read_index(data: memoryview, position: int) -> tuple[int, int]:
        return INT32.unpack_from(data, position)[0], position + 4

    return _decoded(body, lambda: _read_topics(body, 0, read_index), elements_max)


def encode_epochs_response(topics: Topics[PartitionEpochs], throttle_time_ms: int = 0) -> bytes:
    """The body."""
    return INT32.pack(throttle_time_ms) + _topics(topics, _epochs)


def decode_epochs_response(body: memoryview) -> Topics[PartitionEpochs]:
    """InvalidError for other bytes."""
    return _decoded(body, lambda: _read_topics(body, 4, _read_epochs))


# -- their parts


def _position(each: PartitionPosition) -> bytes:
    return _POSITION.pack(*each)


def _read_position(data: memoryview, position: int) -> tuple[PartitionPosition, int]:
    return PartitionPosition(*_POSITION.unpack_from(data, position)), position + _POSITION.size


def _epochs(each: PartitionEpochs) -> bytes:
    pairs = b"".join(_PAIR.pack(*pair) for pair in sorted(each.before_deletion.items()))
    return _EPOCHS.pack(*each[:5]) + INT32.pack(len(each.before_deletion)) + pairs


def _read_epochs(data: memoryview, position: int) -> tuple[PartitionEpochs, int]:
    fixed = _EPOCHS.unpack_from(data, position)
    count, position = wire.read_count(data, position + _EPOCHS.size, False)
    end = position + count * _PAIR.size
    if end > len(data):
        raise InvalidError(f"impossible count: count={count}")
    before_deletion = dict(_PAIR.iter_unpack(data[position:end]))
    return PartitionEpochs(*fixed)._replace(before_deletion=before_deletion), end


def _topics(topics: Topics[T], encode: Callable[[T], bytes]) -> bytes:
    parts = [INT32.pack(len(topics))]
    for name, partitions in topics.items():
        parts += (wire.string(name, False), INT32.pack(len(partitions)), *map(encode, partitions))
    return b"".join(parts)


def _read_topics(data: memoryview, position: int, read: _Item[T]) -> tuple[dict[str, list[T]], int]:
    """A topic that occurs twice has the partitions of both."""
    topics: dict[str, list[T]] = {}
    count, position = wire.read_count(data, position, False)
    for _ in range(count):
        name, position = wire.read_string(data, position, False)
        partitions, position = wire.read_count(data, position, False)
        found = topics.setdefault(name, [])
        for _ in range(partitions):
            one, position = read(data, position)
            found.append(one)
    return topics, position


def _decoded(body: memoryview, read: Callable[[], tuple[T, int]], elements_max: int | None = None) -> T:
    if elements_max is not None:
        wire.allow_elements(elements_max)
    try:
        found, end = read()
    except (*wire.MALFORMED, TooManyElementsError) as error:
        raise InvalidError(f"malformed request or response of ordered delivery: {error}") from error
    finally:
        wire.allow_elements()
    if end != len(body):
        raise InvalidError(f"malformed request or response of ordered delivery: surplus={len(body) - end}")
    return found
