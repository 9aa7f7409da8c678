"""Opens batches into records, or builds batches from records, with aiokafka's Cython codec.

Place: on the write path only for compacted topics (keys); otherwise in compaction and tools. It runs off the event
loop, because it takes about a microsecond per record. Batches with header names that are not UTF-8, which the Cython
codec refuses, are read in Python: agents accept them, as Kafka's brokers do.
Invariant of any header name: the same records as the codec's, with U+FFFD in names for what is not UTF-8. Only for
readers: a batch that is written again keeps its bytes.
Invariant: a decoded batch has exactly the header's number of records, at increasing offsets inside the header's
range; `decode_records(encode_batch(records))` gives the same records. Malformed bytes raise CorruptError; a batch
that claims, or unpacks to, more than the limit raises BatchTooLargeError before it uses that memory, because a few
bytes may expand to millions of records.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import crc32c
import numpy
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from headrace.storage.errors import CorruptError, InvalidError
from headrace.storage.records.check import MIN_RECORD_BYTES
from headrace.storage.records.compression import MAX_EXPANSION, Codec, compress, decompress_into
from headrace.storage.records.errors import BatchTooLargeError
from headrace.storage.records.header import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    batch_crc,
    read_header,
)


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


MAX_OPENED_BYTES = 64 * 1024 * 1024
"""Limit on the unpacked size of one batch's records, unless a caller sets another."""
MAX_OPENED_RECORDS = 1_000_000
"""Half a second of CPU. 64 MiB can hold nine times as many empty records; a producer's 1 MiB buffer at most
150,000."""

_NO_TIMESTAMP = -1
_INT32_MAX = 2**31 - 1
_GUARD_BYTES = 64
"""Zeros after the records: the Cython reader may read a few bytes beyond the end before it notices."""


class Record(NamedTuple):
    """One record. `offset` is absolute, `timestamp` in ms (-1: none)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = []  # noqa: RUF012 -- shared and never changed


class RecordColumns(NamedTuple):
    """The records of a batch by field, for readers of many records: a fifth of the time of a Record each."""

    offsets: numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]
    timestamps: numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[tuple[str, bytes | None]]]

    def between(self, start: int, end: int) -> RecordColumns:
        """The records with offsets in [start, end)."""
        first, last = (int(place) for place in numpy.searchsorted(self.offsets, (start, end)))
        places = slice(first, last)
        offsets, timestamps, keys, values, headers = self
        return RecordColumns(offsets[places], timestamps[places], keys[places], values[places], headers[places])


_BROKEN = (CorruptRecordException, UnicodeDecodeError, OverflowError, MemoryError)
"""What the Cython reader raises. Lengths beyond the buffer surface as the last two; header names need not be UTF-8."""


class OpenBatch:
    """A batch with unpacked but unread records: each iteration reads them one by one."""

    def __init__(self, header: BatchHeader, opened: memoryview) -> None:
        self.body_bytes = len(opened) - HEADER_BYTES
        """Of all records, unpacked."""
        self._header = header
        self._opened = opened

    def __iter__(self) -> Iterator[Record]:
        """The records in order. CorruptError at the first invalid record, after the valid ones before it."""
        header = self._header
        previous, end = header.base_offset - 1, header.base_offset + header.last_offset_delta
        try:
            for r in DefaultRecordBatch(self._opened):  # it stops at the header's count and refuses surplus bytes
                offset = r.offset
                if offset <= previous:
                    raise CorruptError(f"record offsets do not rise: offset={offset} after={previous}")
                if offset > end:
                    raise CorruptError(f"record beyond its batch: offset={offset} last={end}")
                previous = offset
                yield Record(offset, _NO_TIMESTAMP if r.timestamp is None else r.timestamp, r.key, r.value, r.headers)
        except _BROKEN as error:
            raise CorruptError(f"broken record: after={previous} last={end} {error!r}") from error

    def columns(self) -> RecordColumns:
        """All records at once. CorruptError as by iterating, but not for a header's name that is not UTF-8: as Java's
        client, this has U+FFFD for what is not.
        """
        first, end = self._header.base_offset, self._header.base_offset + self._header.last_offset_delta
        try:
            records = list(DefaultRecordBatch(self._opened))
        except UnicodeDecodeError:
            records = read_with_any_names(self._opened, self._header)
        except _BROKEN as error:
            raise CorruptError(f"broken record: batch={first}-{end} {error!r}") from error
        offsets = numpy.array([r.offset for r in records], numpy.int64)
        if len(offsets) and not (offsets[0] >= first and offsets[-1] <= end and (numpy.diff(offsets) > 0).all()):
            raise CorruptError(f"record offsets do not rise inside their batch: batch={first}-{end}")
        timestamps = [r.timestamp for r in records]
        if None in timestamps:
            timestamps = [_NO_TIMESTAMP if timestamp is None else timestamp for timestamp in timestamps]
        return RecordColumns(
            offsets,
            numpy.array(timestamps, numpy.int64),
            [r.key for r in records],
            [r.value for r in records],
            [r.headers for r in records],
        )


def open_batch(batch: memoryview, *, max_opened_bytes: int = MAX_OPENED_BYTES) -> OpenBatch:
    """One complete batch, unpacked into the memory from which its records are read.

    CorruptError if checksum, header or compressed body are wrong. BatchTooLargeError, mostly from the
    header alone, if there are more than MAX_OPENED_RECORDS or they unpack to more than `max_opened_bytes`.
    """
    header = _sound_header(batch)
    count = header.record_count
    if count * MIN_RECORD_BYTES > (len(batch) - HEADER_BYTES) * MAX_EXPANSION[header.codec]:
        raise CorruptError(f"more records than fit: records={count} batch_bytes={len(batch)} codec={header.codec}")
    if count > MAX_OPENED_RECORDS or count * MIN_RECORD_BYTES > max_opened_bytes:
        raise BatchTooLargeError(f"too many records to open: records={count} batch_bytes={len(batch)}")
    return OpenBatch(header, _open(batch, header, max_opened_bytes))


def decode_records(batch: memoryview, *, max_opened_bytes: int = MAX_OPENED_BYTES) -> list[Record]:
    """All records of one complete batch, in order. Offsets count from the header's base offset.

    Raises what `open_batch` raises, and CorruptError if record framing or counts are wrong.
    """
    return list(open_batch(batch, max_opened_bytes=max_opened_bytes))


def encode_batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    base_offset: int,
    last_offset: int | None = None,
    log_append_time: bool = False,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """One batch of `records`, with offsets that increase from `base_offset` or later.

    `last_offset`, if given, makes the batch cover offsets beyond its last record: after compaction
    every offset is still a valid fetch offset. With `log_append_time` readers see the highest timestamp for all
    records. `delete_horizon_ms` takes the place of the base timestamp (KIP-534); readers see the same times.
    InvalidError if there are no records, offsets do not increase, or the batch would exceed 2 GiB.
    """
    if not records:
        raise InvalidError(f"a batch needs a record: base_offset={base_offset}")
    end = records[-1].offset if last_offset is None else last_offset
    if end < records[-1].offset or end - base_offset > _INT32_MAX:
        raise InvalidError(f"offsets do not fit the batch: base_offset={base_offset} last_offset={end}")
    base_timestamp = records[0].timestamp if delete_horizon_ms is None else delete_horizon_ms
    body = compress(codec, _encode_body(records, base_offset, base_timestamp))
    if len(body) > _INT32_MAX - HEADER_BYTES:
        raise InvalidError(f"batch too large: records={len(records)} body_bytes={len(body)}")
    attributes = codec | (LOG_APPEND_TIME_BIT if log_append_time else 0)
    return _sealed(
        HEADER.pack(
            base_offset,
            HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body),
            leader_epoch,
            MAGIC,
            0,
            attributes | (0 if delete_horizon_ms is None else DELETE_HORIZON_BIT),
            end - base_offset,
            base_timestamp,
            max(record.timestamp for record in records),
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        ),
        body,
    )


def encode_control_batch(record: Record, *, producer_id: int, producer_epoch: int, leader_epoch: int) -> bytes:
    """A batch with one control record: a transaction's marker (KIP-98)."""
    body = _encode_body([record], record.offset, record.timestamp)
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body)
    attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    times = record.timestamp, record.timestamp
    producer = producer_id, producer_epoch, -1
    return _sealed(
        HEADER.pack(record.offset, length, leader_epoch, MAGIC, 0, attributes, 0, *times, *producer, 1), body
    )


def empty_batch(base_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """A batch without records that covers these offsets: a reader that fetches one of them continues after it.

    InvalidError if the offsets do not fit one batch.
    """
    if not 0 <= last_offset - base_offset <= _INT32_MAX:
        raise InvalidError(f"offsets do not fit the batch: base_offset={base_offset} last_offset={last_offset}")
    length, none = HEADER_BYTES - LENGTH_PREFIX_BYTES, _NO_TIMESTAMP
    span = last_offset - base_offset
    return _sealed(HEADER.pack(base_offset, length, leader_epoch, MAGIC, 0, 0, span, none, none, -1, -1, -1, 0), b"")


def _sealed(unsealed: bytes, body: bytes) -> bytes:
    """The batch with its checksum."""
    crc = crc32c.crc32c(body, crc32c.crc32c(unsealed[CRC_START:]))
    return b"".join((unsealed[: CRC_START - 4], crc.to_bytes(4, "big"), unsealed[CRC_START:], body))


def _sound_header(batch: memoryview) -> BatchHeader:
    if len(batch) < HEADER_BYTES:
        raise CorruptError(f"batch shorter than its header: bytes={len(batch)}")
    header = read_header(batch)
    if header.magic != MAGIC or header.size != len(batch) or batch_crc(batch) != header.crc:
        raise CorruptError(f"not a sound batch: bytes={len(batch)} claimed={header.size} magic={header.magic}")
    if header.codec >= len(MAX_EXPANSION):
        raise CorruptError(f"unknown compression codec: codec={header.codec}")
    if header.record_count < 0 or header.last_offset_delta < 0:
        raise CorruptError(f"negative counts: records={header.record_count} last_delta={header.last_offset_delta}")
    return header


def _open(batch: memoryview, header: BatchHeader, max_opened_bytes: int) -> memoryview:
    """The batch with unpacked records and cleared codec bits, in memory with guard bytes after it."""
    body = batch[HEADER_BYTES:]
    possible = len(body) * MAX_EXPANSION[header.codec]
    limit = min(max_opened_bytes, possible)
    # The operating system fills it page by page, so an unused part of the limit costs nothing.
    memory = numpy.zeros(HEADER_BYTES + limit + _GUARD_BYTES, numpy.uint8).data
    target = memory[HEADER_BYTES : HEADER_BYTES + limit]
    if header.codec == Codec.NONE:
        if len(body) > limit:
            raise BatchTooLargeError(f"records too large to open: bytes={len(body)} limit={limit}")
        size = len(body)
        target[:size] = body
    else:
        try:
            size = decompress_into(Codec(header.codec), body, target)
        except BatchTooLargeError as error:
            if limit < possible:
                raise
            raise CorruptError(f"records unpack to an impossible size: {error}") from error
    HEADER.pack_into(memory, 0, *header._replace(attributes=header.attributes & ~CODEC_MASK))
    return memory[: HEADER_BYTES + size]


def _encode_body(records: Sequence[Record], base_offset: int, base_timestamp: int) -> bytes:
    """The records without a batch header, uncompressed.

    The builder receives times as deltas: it treats a first timestamp of -1 as "not set yet". It takes the first one
    as the base of the others, so a first record without a content, which is cut off, sets the base to 0.
    """
    builder = DefaultRecordBatchBuilder(
        magic=MAGIC,
        compression_type=Codec.NONE,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=sys.maxsize,
    )
    builder.append(0, 0, None, None, [])
    previous = base_offset - 1
    for offset, timestamp, key, value, headers in records:
        if offset <= previous:
            raise InvalidError(f"record offsets do not rise: offset={offset} after={previous}")
        previous = offset
        try:
            builder.append(offset - base_offset, timestamp - base_timestamp, key, value, headers)
        except OverflowError as error:
            raise InvalidError(f"record time does not fit: offset={offset} timestamp={timestamp}") from error
    return bytes(memoryview(builder.build())[HEADER_BYTES + MIN_RECORD_BYTES :])
