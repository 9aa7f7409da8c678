"""Validates a producer's batches by their headers alone: framing, checksum, and plausible values.

Place: second step of the write path, right after the request is decoded; records are not opened.
Invariant: a batch that passes can be stored and given `record_count` offsets; no value of the header is
trusted beyond what the batch's bytes allow.
`check_batch` runs for every batch and is written without helper calls for speed.
Source: KIP-98; Kafka's LogValidator and UnifiedLog for the error of each refusal.
"""

from __future__ import annotations

from headrace.storage.errors import CorruptError, InvalidError
from headrace.storage.records.compression import MAX_EXPANSION
from headrace.storage.records.errors import (
    BatchTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)
from headrace.storage.records.header import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LENGTH_OFFSET,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    MAGIC_OFFSET,
    BatchHeader,
    batch_crc,
    read_header,
)

MIN_RECORD_BYTES = 7
"""Length, attributes, two deltas, two lengths and a header count: at least one byte each."""

_JUDGED_BITS = CODEC_MASK | LOG_APPEND_TIME_BIT | CONTROL_BIT | DELETE_HORIZON_BIT
"""Valid attributes, masked with these bits, are just the number of the codec."""


def split_batches(records: memoryview) -> list[memoryview]:
    """The consecutive batches in a partition's part of a Produce request.

    Checks only lengths and magic: each result still needs `check_batch`. Empty input gives no
    batch. CorruptError if the bytes end inside a batch, UnsupportedMagicError as `check_batch`.
    """
    batches = []
    position, end = 0, len(records)
    while position < end:
        rest = records[position:]
        _check_magic(rest)
        size = int.from_bytes(rest[LENGTH_OFFSET:LENGTH_PREFIX_BYTES], "big", signed=True) + LENGTH_PREFIX_BYTES
        if not HEADER_BYTES <= size <= len(rest):
            raise CorruptError(f"batch framing broken: position={position} claimed_bytes={size} left={len(rest)}")
        batches.append(rest[:size])
        position += size
    return batches


def check_batch(data: memoryview, *, max_bytes: int) -> BatchHeader:
    """The header of the one batch in `data`, after validation. `max_bytes` limits the whole batch.

    Raises CorruptError or one of storage/records/errors.py. With a producer id of -1, the epoch and
    the sequence have no meaning, as in Kafka: kafkajs sends zeros there.
    """
    size = len(data)
    if size < HEADER_BYTES or data[MAGIC_OFFSET] != MAGIC:
        _check_magic(data)
    header = read_header(data)
    if header.batch_length + LENGTH_PREFIX_BYTES != size:
        raise CorruptError(f"batch length is not its bytes: claimed={header.size} bytes={size}")
    if size > max_bytes:
        raise BatchTooLargeError(f"batch too large: size_bytes={size} max_bytes={max_bytes}")
    if batch_crc(data) != header.crc:
        raise CorruptError(f"batch checksum mismatch: stated={header.crc:#010x} size_bytes={size}")
    codec = header.attributes & _JUDGED_BITS
    if codec >= len(MAX_EXPANSION):
        raise _refused_attributes(header.attributes)
    if header.base_offset:
        raise InvalidRecordError(f"the base offset of a batch from a client is 0: base_offset={header.base_offset}")
    count = header.record_count
    if count < 1 or header.last_offset_delta != count - 1:
        raise InvalidRecordError(
            f"record count is not the offset range: records={count} last_delta={header.last_offset_delta}"
        )
    if count * MIN_RECORD_BYTES > (size - HEADER_BYTES) * MAX_EXPANSION[codec]:
        raise InvalidRecordError(f"more records than fit: records={count} size_bytes={size} codec={codec}")
    if header.producer_id != -1:
        _check_producer(header)
    return header


def _check_magic(data: memoryview) -> None:
    """Old formats are shorter than this header, so the magic is checked before the length."""
    if len(data) > MAGIC_OFFSET and data[MAGIC_OFFSET] != MAGIC:
        raise UnsupportedMagicError(f"message format not supported: magic={data[MAGIC_OFFSET]} supported={MAGIC}")
    if len(data) < HEADER_BYTES:
        raise CorruptError(f"batch shorter than its header: bytes={len(data)} header_bytes={HEADER_BYTES}")


def _refused_attributes(attributes: int) -> InvalidError:
    if attributes & CONTROL_BIT:
        return InvalidRecordError(f"clients may not write control batches: attributes={attributes:#06x}")
    if attributes & LOG_APPEND_TIME_BIT:
        return InvalidTimestampError(f"clients may not set log append time: attributes={attributes:#06x}")
    if attributes & DELETE_HORIZON_BIT:
        return InvalidRecordError(f"clients may not set a delete horizon: attributes={attributes:#06x}")
    return UnsupportedCodecError(f"unknown compression codec: codec={attributes & CODEC_MASK}")


def _check_producer(header: BatchHeader) -> None:
    if header.producer_id < 0 or header.producer_epoch < 0 or header.base_sequence < 0:
        raise InvalidRecordError(
            f"producer fields contradict each other: producer_id={header.producer_id}"
            f" epoch={header.producer_epoch} sequence={header.base_sequence}"
        )
