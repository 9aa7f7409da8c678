"""Checks that the records of a batch are what its header claims: their number, their offsets, and where each one ends.

Place: on the write path after check.py, which has checked the header and the checksum.
Invariant: a batch that passes is read to its end by every client: it holds exactly `record_count` records, with
offsets that rise by one and without attributes (none are defined), and they fill the batch. Memory and time are
bounded by the caller's limits on unpacked bytes and on items (records and their headers).
Source: Kafka's LogValidator and DefaultRecord, which read every record of every batch as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from headrace.storage.records.check import MIN_RECORD_BYTES
from headrace.storage.records.compression import MAX_EXPANSION, Codec, decompress_into
from headrace.storage.records.errors import BatchTooLargeError, InvalidRecordError
from headrace.storage.records.header import HEADER_BYTES, BatchHeader

_MANY = 128
"""Number of records from which on arithmetic on arrays is faster than a loop."""
_AT_ONCE = 16_384
"""Records in one step of arithmetic: so many use 3 MiB in all arrays and lists."""
_WORTH_COPYING = 4096
"""Bytes are read faster than a view of them, if the copy is small."""
_INT32_SHIFT, _INT64_SHIFT = 28, 63

_Numbers = NDArray[numpy.int64]


class RecordWork(NamedTuple):
    """The work of checking a batch, or the most that a caller permits."""

    unpacked_bytes: int
    items: int
    """Records and headers of records."""


ITEMS_MAX = 1_000_000
"""Most items of one batch. A producer's buffer of one MiB has at most 150,000 records, or 500,000 headers."""
_UNPACKED_FREE_BYTES = 32 * 1024 * 1024
_UNPACKED_PER_BYTE = 8


def largest(batch_bytes: int) -> RecordWork:
    """Return the largest unpacked size of a batch of this size. Kafka has no limit, but a batch of one MiB may
    unpack to many GiB.
    """
    return RecordWork(_UNPACKED_FREE_BYTES + _UNPACKED_PER_BYTE * batch_bytes, ITEMS_MAX)


def check_records(batch: memoryview, header: BatchHeader, most: RecordWork | None = None) -> RecordWork:
    """Check the records of a batch that check_batch let pass; returns what it took.

    InvalidRecordError if they are not what the header claims, CorruptError if they do not unpack,
    BatchTooLargeError if it takes more than `most` (None: `largest` of its size).
    """
    most = most or largest(len(batch))
    body, count = batch[HEADER_BYTES:], header.record_count
    if header.codec != Codec.NONE:
        body = _unpacked(body, Codec(header.codec), most.unpacked_bytes)
    if count * MIN_RECORD_BYTES > len(body):
        raise InvalidRecordError(f"fewer records than claimed: records={count} bytes={len(body)}")
    if count > most.items:
        raise BatchTooLargeError(f"too many records: records={count} most={most.items}")
    headers = _Headers(most.items - count)
    try:
        if count < _MANY:
            _check_each(bytes(body) if len(body) < _WORTH_COPYING else body, count, headers)
        else:
            _check_all(body, count, headers)
    except IndexError as error:
        raise InvalidRecordError(f"records end within a record: records={count} bytes={len(body)}") from error
    return RecordWork(len(body), most.items - headers.left)


class _Headers:
    """The number of headers that a batch may still have."""

    def __init__(self, left: int) -> None:
        self.left = left

    def skip(self, body: bytes | memoryview, position: int, count: int) -> int:
        """The position after `count` headers of one record."""
        if not 0 <= count <= len(body) - position:
            raise InvalidRecordError(f"impossible number of headers: headers={count}")
        self.left -= count
        if self.left < 0:
            raise BatchTooLargeError(f"too many headers of records: headers={count}")
        for _ in range(count):
            key_bytes, position = _varint(body, position)
            value_bytes, position = _varint(body, position + max(key_bytes, 0))
            if key_bytes < 0 or value_bytes < -1:
                raise InvalidRecordError(f"negative length in a header: key={key_bytes} value={value_bytes}")
            position += max(value_bytes, 0)
        return position


def _unpacked(body: memoryview, codec: Codec, limit: int) -> memoryview:
    memory = numpy.empty(min(limit, len(body) * MAX_EXPANSION[codec]), numpy.uint8).data  # unused parts cost nothing
    return memory[: decompress_into(codec, body, memory)]


def _check_each(body: bytes | memoryview, count: int, headers: _Headers) -> None:
    """Varints of one byte, the usual case of all but the sizes, are read without a function call."""
    position = 0
    for index in range(count):
        size, position = _varint(body, position)
        stop = position + size
        if body[position]:
            raise InvalidRecordError(f"unknown attributes: record={index} attributes={body[position]:#04x}")
        position += 1
        while body[position] > 0x7F:  # the timestamp
            position += 1
        position += 1
        byte = body[position]
        if byte < 0x80:
            offset, position = (byte >> 1) ^ -(byte & 1), position + 1
        else:
            offset, position = _varint(body, position)
        if offset != index:
            raise InvalidRecordError(f"offsets do not rise by one: record={index} offset={offset}")
        byte = body[position]
        if byte < 0x80:
            key_bytes, position = (byte >> 1) ^ -(byte & 1), position + 1
        else:
            key_bytes, position = _varint(body, position)
        position += max(key_bytes, 0)
        value_bytes, position = _varint(body, position)
        if key_bytes < -1 or value_bytes < -1:
            raise InvalidRecordError(f"negative length: record={index} key={key_bytes} value={value_bytes}")
        position += max(value_bytes, 0)
        if body[position]:
            header_count, position = _varint(body, position)
            position = headers.skip(body, position, header_count)
        else:
            position += 1
        if position != stop:
            raise InvalidRecordError(f"record of another size than claimed: record={index} claimed={size}")
    if position != len(body):
        raise InvalidRecordError(f"bytes after the last record: records={count} surplus={len(body) - position}")


def _varint(body: bytes | memoryview, position: int) -> tuple[int, int]:
    """(a signed varint of at most 5 bytes, the next position)."""
    byte = body[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = body[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
        if shift > _INT32_SHIFT:
            raise InvalidRecordError("varint wider than 32 bits")


def _check_all(body: memoryview, count: int, headers: _Headers) -> None:
    position = 0
    for first in range(0, count, _AT_ONCE):
        position = _check_some(body, position, range(first, min(first + _AT_ONCE, count)), headers)
    if position != len(body):
        raise InvalidRecordError(f"bytes after the last record: records={count} surplus={len(body) - position}")


def _check_some(body: memoryview, first_byte: int, numbers: range, headers: _Headers) -> int:
    """The records with these numbers; the position after them."""
    starts, stops = _bounds(body, first_byte, numbers)
    data = numpy.frombuffer(body, numpy.uint8)
    if data.take(starts, mode="clip").any():
        raise InvalidRecordError(f"unknown attributes in a record: records={numbers}")
    _, position = _varints(data, starts + 1, _INT64_SHIFT)
    offsets, position = _varints(data, position, _INT32_SHIFT)
    if not numpy.array_equal(offsets, numpy.arange(numbers.start, numbers.stop)):
        raise InvalidRecordError(f"offsets do not rise by one: records={numbers}")
    key_bytes, position = _varints(data, position, _INT32_SHIFT)
    value_bytes, position = _varints(data, position + numpy.maximum(key_bytes, 0), _INT32_SHIFT)
    if min(key_bytes.min(), value_bytes.min()) < -1:
        raise InvalidRecordError(f"negative length in a record: records={numbers}")
    header_counts, position = _varints(data, position + numpy.maximum(value_bytes, 0), _INT32_SHIFT)
    for index in numpy.flatnonzero(header_counts).tolist():
        if position[index] > stops[index]:
            break
        position[index] = headers.skip(body[: stops[index]], int(position[index]), int(header_counts[index]))
    if not numpy.array_equal(position, stops):
        raise InvalidRecordError(f"a record of another size than claimed: records={numbers}")
    return int(stops[-1])


def _bounds(body: memoryview, first_byte: int, numbers: range) -> tuple[_Numbers, _Numbers]:
    """Return where each record begins, after its length, and where it ends."""
    starts: list[int] = []
    stops: list[int] = []
    stop, end = first_byte, len(body)
    for number in numbers:
        byte = body[stop]
        if byte < 0x80:
            start, size = stop + 1, byte >> 1
            if byte & 1:
                size = -1
        else:
            size, start = _varint(body, stop)
        stop = start + size
        if size < 0 or stop > end:
            raise InvalidRecordError(f"record exceeds the batch: record={number} size={size}")
        starts.append(start)
        stops.append(stop)
    return numpy.array(starts), numpy.array(stops)


def _varints(data: NDArray[numpy.uint8], position: _Numbers, widest: int) -> tuple[_Numbers, _Numbers]:
    """(the signed varint at each position, the next positions). Positions beyond the end read the last byte."""
    byte = data.take(position, mode="clip").astype(numpy.int64)
    value, position = byte & 0x7F, position + 1
    more, shift = byte > 0x7F, 0
    while more.any():
        shift += 7
        if shift > widest:
            raise InvalidRecordError("varint too wide")
        byte = data.take(position, mode="clip").astype(numpy.int64)
        value = numpy.where(more, value | (byte & 0x7F) << shift, value)
        position = position + more
        more = more & (byte > 0x7F)
    return (value >> 1) ^ -(value & 1), position
