"""How unmodified clients place keys, and which keys a doubling moves.

Place: asked by agents of batches for a partition that is split in two (agent/produce/moved_keys.py).
A partitioner here is a hash of the key; the client takes it modulo its count of partitions. So a doubling from N to
2 N partitions moves a key from p to p + N or leaves it at p.
Invariant: equal to the clients' own for every key that has at least one byte. Records without a key, and in crc32
those with an empty one (consistent_random places them at random), belong to no partition and never move.
Source: Kafka's BuiltInPartitioner; librdkafka's rdkafka_partitioner (consistent, murmur2, fnv1a); sarama's
NewHashPartitioner.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from headrace.metastore.partitions.murmur2 import key_hash

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
