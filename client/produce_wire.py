"""Produce, version 12: one batch for one partition, with the partition count by which it was chosen.

Place: between sending.py and the wire. Version 12 names topics, and its answer to an error is one code.
Source: Kafka's ProduceRequest.json and ProduceResponse.json; protocol/partition_counts.py.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.protocol import wire
from headrace.protocol.partition_counts import count_tags

VERSION = 12
ACKS_ALL = -1
_ANSWER = struct.Struct(">ihqqq")


class ProducedBatch(NamedTuple):
    """`base_offset` and `log_append_time_ms` are -1 if there is an error."""

    error_code: int
    base_offset: int
    log_append_time_ms: int
    message: str | None


def encode_produce_request(topic: str, partition: int, batch: bytes, count: int, timeout_ms: int) -> bytes:
    """The body."""
    row = struct.pack(">i", partition) + wire.size_prefix(len(batch), True) + batch + wire.EMPTY_TAGS
    name = wire.string(topic, True)
    rows = wire.size_prefix(1, True) + row + count_tags(count)
    return b"\0" + struct.pack(">hi", ACKS_ALL, timeout_ms) + wire.size_prefix(1, True) + name + rows + wire.EMPTY_TAGS


def decode_produce_response(body: memoryview) -> ProducedBatch:
    """Decode the response of a request for one partition; one of wire.MALFORMED for other bytes."""
    _, position = wire.read_count(body, 0, True)
    _, position = wire.read_string(body, position, True)
    _, position = wire.read_count(body, position, True)
    _, code, offset, append_time_ms, _ = _ANSWER.unpack_from(body, position)
    position += _ANSWER.size
    errors, position = wire.read_count(body, position, True)
    for _ in range(errors):
        _, position = wire.read_string_or_null(body, position + 4, True)
        _, position = wire.read_tags(body, position)
    text, _ = wire.read_string_or_null(body, position, True)
    return ProducedBatch(code, offset, append_time_ms, text)
