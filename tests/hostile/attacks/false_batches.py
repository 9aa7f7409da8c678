"""Batches that are not what they claim, or much more: ten million records in 7.7 KB, bombs, very many headers."""

from __future__ import annotations

import random
import struct

from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec, compress
from headrace.storage.records.header import HEADER_BYTES, batch_crc, read_header
from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import METADATA, PRODUCE, ask, request, text

_TOPIC = "false"
PARTITIONS_PER_REQUEST = 60


def forged(packed: bytes, records: int, codec: Codec) -> bytes:
    """A batch with a valid checksum around these bytes."""
    batch = bytearray(encode_batch([Record(0, 1_700_000_000_000, None, b"v")], base_offset=0)[:HEADER_BYTES] + packed)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">hi", batch, 21, int(codec), records - 1)
    struct.pack_into(">i", batch, 57, records)
    struct.pack_into(">I", batch, 17, batch_crc(memoryview(batch)))
    assert read_header(memoryview(batch)).record_count == records
    return bytes(batch)


def batches() -> dict[str, bytes]:
    """Return the batches by name."""
    records = compress(Codec.ZSTD, b"".join(_empty(index) for index in range(200_000)))
    gzip_members = compress(Codec.GZIP, b"") * 40_000
    headers = encode_batch([Record(0, 0, None, b"", [("", None)] * 100_000)], base_offset=0)
    return {
        "7.7 KB that claim 10 million records": forged(random.Random(1).randbytes(7_600), 10_000_000, Codec.ZSTD),
        "a bomb of zeros": forged(compress(Codec.ZSTD, bytes(200_000_000)), 1, Codec.ZSTD),
        "200,000 true records": forged(records, 200_000, Codec.ZSTD),
        "40,000 empty gzip members": forged(gzip_members, 1, Codec.GZIP),
        "100,000 headers of one record": headers,
    }


def _empty(index: int) -> bytes:
    offset = bytearray()
    value = index << 1
    while value > 0x7F:
        offset.append(value & 0x7F | 0x80)
        value >>= 7
    offset.append(value)
    body = b"\0\0" + bytes(offset) + b"\1\1\0"
    return bytes([len(body) << 1]) + body


def produce(batch: bytes, count: int) -> bytes:
    """A request with the batch for so many partitions."""
    body = struct.pack(">hhii", -1, -1, 30_000, 1) + text(_TOPIC) + struct.pack(">i", count)
    each = struct.pack(">i", len(batch)) + batch
    return request(PRODUCE, 7, body + b"".join(struct.pack(">i", 0) + each for _ in range(count)))


async def attack(target: AttackedAgent) -> str:
    """Each batch many times in one request."""
    await ask(*target.kafka, request(METADATA, 1, struct.pack(">i", 1) + text(_TOPIC)))
    told = []
    for name, batch in batches().items():
        answer = await ask(*target.kafka, produce(batch, PARTITIONS_PER_REQUEST), 120.0)
        at = 4 + 4 + 2 + len(_TOPIC) + 4 + 4
        code = struct.unpack_from(">h", answer, at)[0] if len(answer) > at + 2 else "closed"
        told.append(f"{name}: error code {code}")
    return "; ".join(told)
