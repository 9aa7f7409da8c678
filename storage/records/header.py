"""The 61-byte header of a record batch v2 (KIP-98), read without opening records.

Place: first look at everything a producer sends; also how an extent is walked batch by batch.
Invariant: base offset and leader epoch lie outside the CRC, so they are patched while reading and a
stored byte is never rewritten. If the process dies here nothing is lost.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

HEADER_BYTES = 61
LENGTH_OFFSET = 8
"""Where the int32 length stands; it counts the bytes after itself."""
LENGTH_PREFIX_BYTES = 12
CRC_START = 21
"""The CRC32C covers everything from the attributes on."""

_HEADER = struct.Struct(">qiibIhiqqqhii")


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
        """The whole batch in bytes."""
        return self.batch_length + LENGTH_PREFIX_BYTES


def read_header(data: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`; struct.error when fewer than 61 bytes follow. Checks nothing."""
    return BatchHeader(*_HEADER.unpack_from(data, position))
