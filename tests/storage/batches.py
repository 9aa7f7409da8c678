"""Batches for tests, built with struct (and a compressor), so that no library decides what they are."""

from __future__ import annotations

import struct
from typing import Any

import crc32c

from headrace.storage.records.compression import Codec, compress
from headrace.storage.records.header import CRC_START, HEADER, BatchHeader, read_header

BASE_TIME_MS = 1_700_000_000_000


def plain_batch(count: int = 1, value: bytes = b"v", *, base_timestamp: int = BASE_TIME_MS, **fields: int) -> bytes:
    """`count` records with no key and one `value` (under 8 KiB), 1 ms apart; `fields` override the header's."""
    body = b"".join(_record(delta, value) for delta in range(count))
    header = BatchHeader(
        base_offset=0,
        batch_length=49 + len(body),
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=base_timestamp + count - 1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
    )
    return forge(HEADER.pack(*header) + body, **fields)


def crowded_batch(count: int, codec: Codec = Codec.ZSTD) -> memoryview:
    """The same as many records as possible in as few bytes: seven each, and all the same, so they pack to next to
    nothing.

    Their offsets do not rise, which is unknown before they are read.
    """
    body = compress(codec, b"\x0c\0\0\0\x01\x01\0" * count)
    fields = {"batch_length": 49 + len(body), "last_offset_delta": count - 1, "record_count": count}
    return memoryview(forge(plain_batch()[: HEADER.size] + body, attributes=int(codec), **fields))


def forge(batch: bytes, **fields: Any) -> bytes:
    """`batch` with header fields replaced and the CRC redone, unless `crc` itself is forged."""
    header = HEADER.pack(*read_header(batch)._replace(**fields))
    forged = bytearray(header + batch[HEADER.size :])
    if "crc" not in fields:
        struct.pack_into(">I", forged, CRC_START - 4, crc32c.crc32c(forged[CRC_START:]))
    return bytes(forged)


def _record(delta: int, value: bytes) -> bytes:
    fields = b"\x00" + varint(delta) + varint(delta) + varint(-1) + varint(len(value)) + value + varint(0)
    return varint(len(fields)) + fields


def varint(value: int) -> bytes:
    """A zigzag varint, as the fields of a record are written."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
