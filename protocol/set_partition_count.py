"""SetPartitionCount, a request of ours: a topic's count of partitions, also a lower one than it has.

Place: between agent/topics/counts/set_partition_count.py and `headrace topics alter`, under a private API key that is
not advertised. Kafka's CreatePartitions keeps its meaning: it refuses lower counts.
Version 0, request header v1, response header v0, big-endian, strings with an int16 length (-1: null):
    request   topic string · count int32 · timeout_ms int32 · validate_only int8
    response  error_code int16 · error_message nullable string
Invariant: see protocol/wire.py. Both sides use this module, so what one writes the other reads.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.protocol import wire
from headrace.protocol.wire import INT16, INT32, MALFORMED
from headrace.storage.errors import InvalidError

SET_PARTITION_COUNT_KEY = 31_293
"""API key below the keys between agents, and those of clients that keep the order."""
VERSION = 0

_HEADER = struct.Struct(">hhi")
_REST = struct.Struct(">ii?")


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
    header = _HEADER.pack(SET_PARTITION_COUNT_KEY, VERSION, correlation_id) + wire.string(client_id, False)
    frame = header + wire.string(request.topic, False) + _REST.pack(*request[1:])
    return INT32.pack(len(frame)) + frame


def decode_count_request(body: memoryview) -> CountRequest:
    """InvalidError for other bytes."""
    try:
        topic, position = wire.read_string(body, 0, False)
        count, timeout_ms, validate_only = _REST.unpack(body[position:])
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
