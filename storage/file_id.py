"""File ids: UUIDv7, so that an id carries its birth (the database's clock) and sorts by it.

Place: made by an agent when a buffer closes; the key under which commit, sweeper and readers meet.
Invariant: an id is used for one sequence of bytes only, ever. A retried upload re-sends the same
bytes under the same id. The metastore refuses ids born too long ago, so a commit that was lost for
an hour gets a definite answer.
"""

from __future__ import annotations

import random
import uuid

SEGMENTS = "segments/"
"""Every segment file's key begins so, and no other object's."""


def new_file_id(born_ms: int, rng: random.Random) -> uuid.UUID:
    """A UUIDv7 (RFC 9562) for a file born at `born_ms`, milliseconds since the epoch on the database's clock."""
    value = (born_ms & 0xFFFF_FFFF_FFFF) << 80
    value |= 0x7000 << 64 | rng.getrandbits(12) << 64
    value |= 0b10 << 62 | rng.getrandbits(62)
    return uuid.UUID(int=value)


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
