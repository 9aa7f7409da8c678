"""Reads records with header names that are not UTF-8, which the Cython codec refuses.

Place: under codec.py, for batches in which the codec found such a name. Agents take them, as Kafka's brokers do.
Invariant: the same records as the codec's, with U+FFFD in names for what is not UTF-8. Only for readers: a batch that
is written again keeps its bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.storage.errors import CorruptError
from headrace.storage.records.header import HEADER_BYTES, BatchHeader


class ReadRecord(NamedTuple):
    """One record. `timestamp` in ms; None: none."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def read_with_any_names(opened: memoryview, header: BatchHeader) -> list[ReadRecord]:
    """The records of an unpacked batch. CorruptError if they are not what the header says."""
    body, at, found = bytes(opened[HEADER_BYTES:]), 0, []
    try:
        for _ in range(header.record_count):
            record, at = _record(body, at, header)
            found.append(record)
    except IndexError as error:
        raise CorruptError(f"records end within a record: records={header.record_count}") from error
    if at != len(body):
        raise CorruptError(f"bytes behind the last record: bytes={len(body) - at}")
    return found


def _record(body: bytes, at: int, header: BatchHeader) -> tuple[ReadRecord, int]:
    size, at = _varint(body, at)
    end, at = at + size, at + 1  # no attribute of a record is defined
    delta_ms, at = _varint(body, at)
    delta, at = _varint(body, at)
    key, at = _bytes(body, at)
    value, at = _bytes(body, at)
    count, at = _varint(body, at)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _bytes(body, at)
        content, at = _bytes(body, at)
        headers.append(((name or b"").decode("utf-8", "replace"), content))
    if at != end:
        raise CorruptError(f"a record ends elsewhere than its size says: at={at} end={end}")
    time_ms = header.max_timestamp if header.is_log_append_time else header.base_timestamp + delta_ms
    return ReadRecord(header.base_offset + delta, None if time_ms == -1 else time_ms, key, value, headers), at


def _bytes(body: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(body, at)
    if size < 0:
        return None, at
    if size > len(body) - at:
        raise IndexError
    return body[at : at + size], at + size


def _varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = body[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        if shift > 63:
            raise CorruptError("a number in a record does not end")
