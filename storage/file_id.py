"""File ids: UUIDs that carry a file's birth (the database's clock) and its level, and sort by birth.

Place: made by an agent when a buffer closes, or by a merge; the key under which commit, sweeper and readers meet.
Invariant: an id is used for one sequence of bytes only, ever. A retried upload re-sends the same
bytes under the same id. The metastore refuses ids born too long ago, so a commit that was lost for
an hour gets a definite answer.
"""

from __future__ import annotations

import random
import uuid

SEGMENTS = "segments/"
"""Every segment file's key begins so, and no other object's."""


def new_file_id(born_ms: int, rng: random.Random, level: int = 0) -> uuid.UUID:
    """An id for a file born at `born_ms`, milliseconds since the epoch on the database's clock.

    A UUIDv7 (RFC 9562) for what an agent flushes. A merged file, of `level` 1 to 15, has a UUIDv8: the same, but
    for the level in four of the random bits. So a bucket alone tells whose batches carry real offsets.
    """
    value = (born_ms & 0xFFFF_FFFF_FFFF) << 80
    if level:
        value |= 0x8000 << 64 | level << 72 | rng.getrandbits(8) << 64
    else:
        value |= 0x7000 << 64 | rng.getrandbits(12) << 64
    value |= 0b10 << 62 | rng.getrandbits(62)
    return uuid.UUID(int=value)


def level_of(file_id: uuid.UUID) -> int:
    """The level that `new_file_id` put into the id."""
    return file_id.int >> 72 & 0xF if file_id.version == 8 else 0


def born_ms(file_id: uuid.UUID) -> int:
    """The birth that `new_file_id` put into the id, milliseconds since the epoch."""
    return file_id.int >> 80


def object_key(file_id: uuid.UUID) -> str:
    """Where the file lies in the bucket, below the store's prefix.

    Two hex digits of the random part come first: S3 spreads its request rate over key prefixes.
    """
    return f"{SEGMENTS}{file_id.hex[-2:]}/{file_id}"


def file_id_of(key: str) -> uuid.UUID:
    """The id in an object key of `object_key`'s form; ValueError for any other key."""
    file_id = uuid.UUID(key.rpartition("/")[2])
    if object_key(file_id) != key:
        raise ValueError(f"not a segment file key: {key}")
    return file_id
