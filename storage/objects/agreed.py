"""Reads small objects of a format without a checksum, so that a bad transfer is not taken for what they say.

Place: under those who read such an object and write on what it says: records of the bucket that are joined, taken over
or replayed (metastore/recorded_objects.py, metastore/life/), plans that are continued.
Invariant: bytes are returned after one read with the known CRC-32C; without one, after two reads in a row that agree:
a bad transfer does not alter them twice in the same way.
"""

from __future__ import annotations

import crc32c

from headrace.storage.errors import BadTransferError, DamagedError
from headrace.storage.objects.store import ObjectStore

READS_MAX = 6


async def read_agreed(store: ObjectStore, key: str, crc: int | None = None) -> bytes:
    """The object's bytes. DamagedError if two reads in a row return the same bytes with another CRC-32C than `crc`;
    BadTransferError if no two reads agree; else as the store.
    """
    before: bytes | None = None
    for _ in range(READS_MAX):
        body = await store.get(key)
        if crc is not None and crc32c.crc32c(body) == crc:
            return body
        if body == before:
            if crc is None:
                return body
            raise DamagedError(f"stored bytes are damaged: key={key} bytes={len(body)} crc32c={crc:08x}")
        before = body
    raise BadTransferError(f"reads of an object differ from each other: key={key} reads={READS_MAX}")
