"""Places keys: the partition of a key, the keys that move when the count changes.

Place: used by changes.py, by clients that place keys, and by the placement of lifecycle records. Agents ask how
unmodified clients place the keys of a partition that is split in two (agent/produce/validate.py).
Invariant of murmur2, the hash of Kafka's default partitioner: equal to Kafka's Utils.murmur2 for every sequence of
bytes.
A topic with the initial count N grows by splitting one partition at a time: N splits 0, N + 1 splits 1, and so on;
when all have been split, the next round begins with 2 N partitions. A count is always at least N.
Invariant of linear hashing: with count N a key is where Kafka's default partitioner puts it. When the count changes,
a key stays or moves between a partition and one of its ancestors, of which exactly one exists at both counts; so
partitions that exist before and after a change never exchange keys.
With a count of N * 2**k, and only with such a count, every key is at its hash modulo the count, as clients place it
that do not know the initial count.
Source: Litwin, Linear Hashing (1980); KIP-253, changes in the producer.
A partitioner here is a hash of the key; the client takes it modulo its count of partitions. So a doubling from N to
2 N partitions moves a key from p to p + N or leaves it at p.
Invariant of unmodified clients: equal to the clients' own for every key that has at least one byte. Records without
a key, and in crc32 those with an empty one (consistent_random places them at random), belong to no partition and
never move.
Source: Kafka's BuiltInPartitioner; librdkafka's rdkafka_partitioner (consistent, murmur2, fnv1a); sarama's
NewHashPartitioner.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Return the hash as an unsigned number of 32 bits; Kafka's is the same number with a sign."""
    hashed = _SEED ^ len(data) & _MASK
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        word = word * _M & _MASK
        word = (word ^ (word >> 24)) * _M & _MASK
        hashed = hashed * _M & _MASK ^ word
    if rest := data[whole:]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * _M & _MASK
    hashed = (hashed ^ (hashed >> 13)) * _M & _MASK
    return hashed ^ (hashed >> 15)


def key_hash(key: bytes) -> int:
    """0 to 2**31 - 1: what Kafka's default partitioner takes modulo the count (Utils.toPositive)."""
    return murmur2(key) & 0x7FFFFFFF


def place(hashed: int, initial: int, count: int) -> int:
    """The partition of a key with this hash, which is not negative. For a record without a key: of a random number."""
    size = split_size(initial, count)
    index = hashed % (2 * size)
    return index if index < count else index - size


def parent(partition: int, initial: int) -> int | None:
    """The partition that is split when this one is created; None for those of the initial count."""
    return partition - (initial << _rounds(initial, partition)) if partition >= initial else None


def ancestors(partition: int, initial: int) -> tuple[int, ...]:
    """Its parent, the parent's parent, ..., down to one below the initial count: fewer than log2(index) + 1."""
    return tuple(_ancestors(partition, initial))


def nearest(partition: int, initial: int, count: int) -> int:
    """The partition that has its keys at this count: itself, or its nearest ancestor below the count.

    With the count before an expansion it is a new partition's source, with the count after a deletion a deleted one's
    heir.
    """
    return next(each for each in (partition, *_ancestors(partition, initial)) if each < count)


def children(partition: int, initial: int, count: int) -> tuple[int, ...]:
    """The partitions below the count that were split off this one, oldest first: at most log2(count / initial) + 1."""
    found = []
    size = initial
    while size <= partition:
        size *= 2
    while partition + size < count:
        found.append(partition + size)
        size *= 2
    return tuple(found)


def is_power_of_two_times(initial: int, count: int) -> bool:
    """Return whether hash modulo count is the placement, so that doubling and halving move keys only between p and
    p + count.
    """
    return count == initial << _rounds(initial, count)


def split_size(initial: int, count: int) -> int:
    """Return how many partitions there were when the present round of splits began."""
    return initial << _rounds(initial, count)


def _rounds(initial: int, count: int) -> int:
    """Return how often all partitions have been split: the largest L with initial * 2**L <= count."""
    return (count // initial).bit_length() - 1


def _ancestors(partition: int, initial: int) -> Iterator[int]:
    above = parent(partition, initial)
    while above is not None:
        yield above
        above = parent(above, initial)


_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193
_SIGN, _ALL = 0x80000000, 0xFFFFFFFF

KeyHash = Callable[[bytes], int]
"""Not negative."""


def fnv1a(key: bytes) -> int:
    """FNV-1a of 32 bits, as a signed number, without its sign."""
    hashed = _FNV_OFFSET
    for byte in key:
        hashed = (hashed ^ byte) * _FNV_PRIME & _ALL
    return (1 << 32) - hashed if hashed & _SIGN else hashed


PARTITIONERS: dict[str, KeyHash] = {"murmur2": key_hash, "crc32": zlib.crc32, "fnv1a": fnv1a}
"""murmur2: Java's default, franz-go's, kafkajs' and aiokafka's. crc32: librdkafka's default. fnv1a: sarama's default.
"""
_EMPTY_KEYS_MOVE = frozenset({"murmur2", "fnv1a"})


def moves(partitioner: str, key: bytes | None, parent: int, count: int) -> bool:
    """Return whether a doubling from `count` partitions moves a record with this key from `parent` to its child.

    False also of a key that belongs elsewhere: its client chose the partition in another way, and does so again.
    """
    if key is None or (not key and partitioner not in _EMPTY_KEYS_MOVE):
        return False
    return PARTITIONERS[partitioner](key) % (2 * count) == parent + count
