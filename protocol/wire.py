"""The primitives of Kafka's wire format, for all code that parses untrusted bytes.

Place: below produce_codec, fetch_codec, entity_reader and the listener's header parser.
Invariant: a reader takes (data, position) and returns (value, next position). It never reads beyond the
end of its buffer, and checks every length and count against the remaining bytes before it uses it.
The elements of all arrays and tag sections of a request are counted against one allowance, so that a request of
a few megabytes cannot occupy the event loop for seconds.
Malformed input raises one of MALFORMED; the code that decodes a whole request turns that into InvalidError.
Source: Kafka protocol guide; KIP-482 (compact types, tagged fields).
"""

from __future__ import annotations

import struct
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from headrace.storage.errors import InvalidError, TooManyElementsError

Tags = Mapping[int, memoryview]
"""Tagged fields by tag, each as raw bytes."""

NO_TAGS: Tags = MappingProxyType({})
EMPTY_TAGS = b"\0"
NULL_UUID = uuid.UUID(int=0)
UUID_BYTES = 16
MALFORMED = (IndexError, struct.error, UnicodeDecodeError, InvalidError)

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")


@dataclass(slots=True)
class LeaderHint:
    """The current leader of a partition; -1 if unknown (KIP-951)."""

    leader_id: int = -1
    leader_epoch: int = -1


@dataclass(slots=True)
class NodeEndpoint:
    """The address of the leader in a LeaderHint."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


_UNLIMITED = 1 << 62


class _Allowance(threading.local):
    """Elements that the request which this thread decodes may still have; without limit between requests."""

    left = _UNLIMITED


_allowance = _Allowance()


def allow_elements(most: int = _UNLIMITED) -> None:
    """The decoding that this thread begins now may read so many elements in total. To be lifted at its end."""
    _allowance.left = most


def spend_elements(count: int) -> None:
    """Count the elements of an array before they are read; TooManyElementsError beyond the allowance.

    An array of one element need not be counted: there are no more of them than of the elements around them.
    """
    left = _allowance.left - count
    if left < 0:
        raise TooManyElementsError(f"too many array elements in one request: array={count} left={_allowance.left}")
    _allowance.left = left


# -- reading


def read_uvarint(data: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits. Unrolled, because it reads the size of every batch."""
    first = data[position]
    if first < 0x80:
        return first, position + 1
    second = data[position + 1]
    value = first & 0x7F | (second & 0x7F) << 7
    if second < 0x80:
        return value, position + 2
    third = data[position + 2]
    value |= (third & 0x7F) << 14
    if third < 0x80:
        return value, position + 3
    fourth = data[position + 3]
    value |= (fourth & 0x7F) << 21
    if fourth < 0x80:
        return value, position + 4
    fifth = data[position + 4]
    if fifth > 0x0F:
        raise InvalidError("varint wider than 32 bits")
    return value | fifth << 28, position + 5


def read_size(data: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """Byte length of a string, bytes or records field with a 32-bit or compact length; -1 for null."""
    if flexible:
        size = data[position] - 1
        if size < 0x7F:  # one byte, the usual case: no function call
            position += 1
        else:
            size, position = read_uvarint(data, position)
            size -= 1
    else:
        (size,) = INT32.unpack_from(data, position)
        position += 4
    if size > len(data) - position or size < -1:
        raise _passes_the_end(size, data, position)
    return size, position


def read_count(data: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """Number of elements of a non-nullable array; each element takes at least one byte."""
    if flexible and data[position] == 2:  # one element, the usual case: no function call
        return 1, position + 1
    count, position = read_size(data, position, flexible)
    if count > 1:
        spend_elements(count)
    elif count < 0:
        raise InvalidError("null where an array is required")
    return count, position


def read_count_or_null(data: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """Number of elements of a nullable array; -1 for null."""
    count, position = read_size(data, position, flexible)
    if count > 1:
        spend_elements(count)
    return count, position


def read_string_or_null(data: memoryview, position: int, flexible: bool) -> tuple[str | None, int]:
    """A nullable string: int16 length, or compact when flexible."""
    if flexible:
        size, position = read_size(data, position, True)
    else:
        (size,) = INT16.unpack_from(data, position)
        position += 2
        if size > len(data) - position or size < -1:
            raise _passes_the_end(size, data, position)
    if size < 0:
        return None, position
    end = position + size
    return str(data[position:end], "utf-8"), end


def read_string(data: memoryview, position: int, flexible: bool) -> tuple[str, int]:
    """A non-nullable string."""
    value, position = read_string_or_null(data, position, flexible)
    if value is None:
        raise InvalidError("null where a string is required")
    return value, position


def read_uuid(data: memoryview, position: int) -> tuple[uuid.UUID, int]:
    """16 bytes; Kafka's null is the zero id."""
    end = position + UUID_BYTES
    if end > len(data):
        raise InvalidError("uuid exceeds the buffer")
    return uuid.UUID(bytes=bytes(data[position:end])), end


def read_topic_reference(
    data: memoryview, position: int, flexible: bool, by_id: bool
) -> tuple[str | None, uuid.UUID | None, int]:
    """(name, None, next) or (None, topic id, next): the topic of a Produce or Fetch request."""
    if by_id:
        topic_id, position = read_uuid(data, position)
        return None, topic_id, position
    name, position = read_string(data, position, flexible)
    return name, None, position


def read_tags(data: memoryview, position: int) -> tuple[Tags, int]:
    """A tag section. Unknown tags are valid: a newer client may send them (KIP-482)."""
    count = data[position]
    if count == 0:
        return NO_TAGS, position + 1
    count, position = read_uvarint(data, position)
    if count > (len(data) - position) // 2:
        raise _passes_the_end(count, data, position)
    if count > 1:
        spend_elements(count)
    tags: dict[int, memoryview] = {}
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        end = position + size
        if end > len(data):
            raise _passes_the_end(size, data, position)
        tags[tag] = data[position:end]
        position = end
    return tags, position


def _passes_the_end(size: int, data: memoryview, position: int) -> InvalidError:
    return InvalidError(f"impossible length: length={size} left={len(data) - position}")


# -- writing


def uvarint(value: int) -> bytes:
    """The unsigned varint of 0 <= `value` < 2**35."""
    if value < 1 << 7:
        return value.to_bytes(1, "big")
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80)) + uvarint(value >> 21)


def size_prefix(size: int, flexible: bool) -> bytes:
    """The length prefix of `size` bytes or elements; -1 writes null."""
    if flexible and size < 0x7F:  # one byte, the usual case: no function call
        return bytes((size + 1,))
    return uvarint(size + 1) if flexible else INT32.pack(size)


def string(value: str | None, flexible: bool) -> bytes:
    """A nullable string with its length."""
    if value is None:
        return b"\0" if flexible else b"\xff\xff"
    encoded = value.encode()
    return (uvarint(len(encoded) + 1) if flexible else INT16.pack(len(encoded))) + encoded


def topic_reference(name: str | None, topic_id: uuid.UUID | None, flexible: bool, by_id: bool) -> bytes:
    """The topic in a response: by id in the versions in which requests use ids."""
    if by_id:
        return (topic_id or NULL_UUID).bytes
    return string(name or "", flexible)


def tags(fields: Mapping[int, bytes]) -> bytes:
    """A tag section; `fields` in ascending tag order, as KIP-482 requires."""
    if not fields:
        return EMPTY_TAGS
    parts = [uvarint(len(fields))]
    for tag, value in fields.items():
        parts += (uvarint(tag), uvarint(len(value)), value)
    return b"".join(parts)


def leader_hint(hint: LeaderHint) -> bytes:
    """The LeaderIdAndEpoch struct, flexible versions only."""
    return INT32.pack(hint.leader_id) + INT32.pack(hint.leader_epoch) + EMPTY_TAGS


def node_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """The NodeEndpoints array, flexible versions only."""
    parts = [size_prefix(len(endpoints), True)]
    for node in endpoints:
        parts += (INT32.pack(node.node_id), string(node.host, True), INT32.pack(node.port))
        parts += (string(node.rack, True), EMPTY_TAGS)
    return b"".join(parts)
