"""The hash of Kafka's default partitioner.

Place: under linear_hashing.py and the placement of lifecycle records.
Invariant: equal to Kafka's Utils.murmur2 for every sequence of bytes.
"""

from __future__ import annotations

import struct

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
