"""The three changes that are made to a batch: offset, leader epoch, and time of append.

Place: offsets are patched when a Fetch response is assembled; append times before a batch is buffered.
Invariant: offset and epoch are outside the CRC, so patching them keeps it valid; setting an append time
recomputes it. Stored bytes are never changed.
"""

from __future__ import annotations

import struct

from headrace.storage.records.header import CRC_START, LOG_APPEND_TIME_BIT, batch_crc

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
