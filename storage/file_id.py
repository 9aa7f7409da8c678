"""File ids: UUIDs that contain a file's creation time (on the database's clock), level and place, and sort by creation
time.

Place: created by an agent when a buffer closes, or by a merge; commit, sweeper and readers use them as key.
Invariant: an id is used for one sequence of bytes only. A retried upload sends the same bytes under the same id. The
metastore refuses ids that were created too long ago, so a commit that was lost for an hour gets a definite answer.
A file of a bulk write may wait longer: its id says how long. Where a file's bytes are follows from its id alone: an
inline file's are in the metastore, all others' in the bucket. The bucket has an inline file's bytes only if a life of
the metastore lost them and an agent still had them (agent/fetch/loss_notes.py).
"""

from __future__ import annotations

import random
import uuid

from headrace.storage.errors import InvalidError

HOUR_MS = 3_600_000
TERM_HOURS_MAX = 255
"""Most term hours of a bulk file's term."""
_INLINE_MARK = 0xF
"""Takes the place of a level in the id of an inline file. Merges write levels below it."""
INLINE_SLOTS_MAX = 256
SEGMENTS = "segments/"
"""Prefix of every segment file's key, and of no other object's key."""


def new_file_id(born_ms: int, rng: random.Random, level: int = 0) -> uuid.UUID:
    """An id for a file created at `born_ms`, in milliseconds since the epoch on the database's clock.

    A UUIDv7 (RFC 9562) for a file that an agent flushes. A merged file, of `level` 1 to 14, has a UUIDv8: the same
    with the level in four of the random bits. So the bucket alone shows in which files batches have real offsets.
    """
    value = (born_ms & 0xFFFF_FFFF_FFFF) << 80
    if level:
        value |= 0x8000 << 64 | level << 72 | rng.getrandbits(8) << 64
    else:
        value |= 0x7000 << 64 | rng.getrandbits(12) << 64
    value |= 0b10 << 62 | rng.getrandbits(62)
    return uuid.UUID(int=value)


def new_bulk_file_id(born_ms: int, term_hours: int, rng: random.Random) -> uuid.UUID:
    """An id for a file of a bulk write: it may be committed in the first `term_hours` (1 to TERM_HOURS_MAX) after
    `born_ms`.

    A UUIDv8 of level 0, with the term in eight of the random bits. So the sweeper knows the term from the key alone,
    and a job that runs for many hours needs no lease for the files that it has stored.
    """
    if not 1 <= term_hours <= TERM_HOURS_MAX:
        raise InvalidError(f"term out of range: hours={term_hours} max={TERM_HOURS_MAX}")
    value = (born_ms & 0xFFFF_FFFF_FFFF) << 80 | 0x8000 << 64 | term_hours << 64
    return uuid.UUID(int=value | 0b10 << 62 | rng.getrandbits(62))


def new_inline_file_id(born_ms: int, slot: int, rng: random.Random) -> uuid.UUID:
    """An id for a flush file with bytes that go into this slot of the metastore, 0 to INLINE_SLOTS_MAX - 1.

    A UUIDv8 like a merged file's, with a mark in the place of the level, and the slot in the eight bits after it. So
    the bytes are found by the id alone, and a commit that is repeated meets the bytes of the first one.
    """
    if not 0 <= slot < INLINE_SLOTS_MAX:
        raise InvalidError(f"slot out of range: slot={slot} max={INLINE_SLOTS_MAX - 1}")
    value = (born_ms & 0xFFFF_FFFF_FFFF) << 80 | (0x8000 | _INLINE_MARK << 8 | slot) << 64
    return uuid.UUID(int=value | 0b10 << 62 | rng.getrandbits(62))


def is_inline(file_id: uuid.UUID) -> bool:
    """Return whether the file's bytes are in the metastore, until what is live of them is in another file."""
    return file_id.int >> 72 & 0xFF == 0x80 | _INLINE_MARK


def term_ms(file_id: uuid.UUID) -> int:
    """Return how much longer than others this file may wait for its commit: its term, 0 unless it is of a bulk
    write.
    """
    is_bulk = file_id.version == 8 and not file_id.int >> 72 & 0xF
    return (file_id.int >> 64 & 0xFF) * HOUR_MS if is_bulk else 0


def level_of(file_id: uuid.UUID) -> int:
    """The level in the id; an inline file was flushed, so 0."""
    return file_id.int >> 72 & 0xF if file_id.version == 8 and not is_inline(file_id) else 0


def born_ms(file_id: uuid.UUID) -> int:
    """The creation time in the id, in milliseconds since the epoch."""
    return file_id.int >> 80


def object_key(file_id: uuid.UUID) -> str:
    """The file's object key, relative to the store's prefix.

    Two hex digits of the random part come first, because S3 distributes its request rate over key prefixes.
    """
    return f"{SEGMENTS}{file_id.hex[-2:]}/{file_id}"


def file_id_of(key: str) -> uuid.UUID:
    """The id in an object key of `object_key`'s form; ValueError for any other key."""
    file_id = uuid.UUID(key.rpartition("/")[2])
    if object_key(file_id) != key:
        raise ValueError(f"not a segment file key: {key}")
    return file_id
