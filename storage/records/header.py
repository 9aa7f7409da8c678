"""The 61-byte header of a record batch v2 (KIP-98), read or changed without opening records.

Place: first step for every producer's batch; also used to iterate over the batches of an extent. Offsets are patched
when a Fetch response is assembled, append times before a batch is buffered.
Invariant: base offset and leader epoch are outside the CRC, so they are patched while a batch is read, and a stored
byte is never rewritten.
Invariant of changes: offset and epoch are outside the CRC, so patching them keeps it valid; setting an append time
recomputes it. Stored bytes are never changed.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import crc32c

HEADER_BYTES = 61
LENGTH_OFFSET = 8
"""Byte position of the int32 length field; it counts the bytes after itself."""
LENGTH_PREFIX_BYTES = 12
MAGIC_OFFSET = 16
"""Byte position of the magic byte, the same in every message format."""
MAGIC = 2
CRC_START = 21
"""The CRC32C covers all bytes from the attributes on."""

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
"""The base timestamp is a delete horizon, not a record's time (KIP-534). Set by the cleaner only."""

HEADER = struct.Struct(">qiibIhiqqqhii")
_tuple = tuple.__new__
"""Makes a NamedTuple from a tuple of the right length, in a third of the time of its `_make`."""


class BatchHeader(NamedTuple):
    """Fields in wire order; offsets in records, times in ms, `batch_length` in bytes after the length field."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return self.batch_length + LENGTH_PREFIX_BYTES

    @property
    def codec(self) -> int:
        """The compression codec's number; 5 to 7 are unassigned."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether every record's timestamp is `max_timestamp`, set by the broker (KIP-32)."""
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def highest_timestamp(self) -> int:
        """The highest timestamp in the header: a producer may leave the maximum unset; with LogAppendTime, or with a
        delete horizon, the base is no record's time.
        """
        if self.attributes & (LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT):
            return self.max_timestamp
        return max(self.base_timestamp, self.max_timestamp)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time in ms from which on the delete markers of the batch may be removed; None: the cleaner has
        not seen them yet.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction of its producer."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether it holds transaction markers, which only a broker writes."""
        return bool(self.attributes & CONTROL_BIT)


def read_header(data: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`; struct.error if fewer than 61 bytes follow. Checks nothing."""
    return _tuple(BatchHeader, HEADER.unpack_from(data, position))


def batch_crc(batch: memoryview) -> int:
    """The CRC32C that the header of this one complete batch should have."""
    return crc32c.crc32c(batch[CRC_START:])


PATCHED_BYTES = 16
"""Number of bytes that `patched_header` replaces: base offset, length and leader epoch."""

_PATCHED = struct.Struct(">qii")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_LEADER_EPOCH_OFFSET = 12
_CRC_OFFSET = 17
_MAX_TIMESTAMP_OFFSET = 35


def patched_header(batch_length: int, base_offset: int, leader_epoch: int) -> bytes:
    """The first 16 bytes of a batch with its real offset; `batch_length` as in its header.

    A response contains these bytes, then the stored batch from byte 16 on, without a copy.
    """
    return _PATCHED.pack(base_offset, batch_length, leader_epoch)


def patch_offset(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write offset and epoch into a writable batch."""
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _LEADER_EPOCH.pack_into(batch, _LEADER_EPOCH_OFFSET, leader_epoch)


def stamp_log_append_time(batch: bytearray, now_ms: int) -> None:
    """Set the timestamp of every record to `now_ms` (message.timestamp.type=LogAppendTime) and recompute the CRC.

    Records are not opened: readers use `max_timestamp` for each of them if the bit is set (KIP-32).
    A header that was read before is out of date afterwards.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(batch, CRC_START)
    _ATTRIBUTES.pack_into(batch, CRC_START, attributes | LOG_APPEND_TIME_BIT)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_OFFSET, now_ms)
    _CRC.pack_into(batch, _CRC_OFFSET, batch_crc(memoryview(batch)))
