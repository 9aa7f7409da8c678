"""Choose the partitions of rows: by murmur2 of the key and linear hashing; records without a key go round the
partitions. Pure.

Place: in a task (task.py), for rows without a partition.
Invariant: a key goes where headrace.client sends it, so its records stay in order there; at a count of the initial
one times a power of two that is where Java's producer sends it, too.
Source: org.apache.kafka.common.utils.Utils.murmur2, BuiltInPartitioner.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.metastore.partitions.placement import split_size

STICKY_ROWS = 500
"""Number of keyless rows in a row that go to one partition: small batches for each row would compress worse."""
_SEED, _M = 0x9747B28C, 0x5BD1E995
_MASK = np.uint32(0x7FFFFFFF)

Hashes = np.ndarray[tuple[int], np.dtype[np.uint32]]


def murmur2(keys: Sequence[bytes]) -> Hashes:
    """The hash of each key; keys of one length at once."""
    hashes = np.empty(len(keys), np.uint32)
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    for length in np.unique(lengths).tolist():
        places = np.flatnonzero(lengths == length)
        data = np.frombuffer(b"".join([keys[place] for place in places.tolist()]), np.uint8)
        hashes[places] = _of_one_length(data.reshape(len(places), length), length)
    return hashes


def _of_one_length(data: np.ndarray[tuple[int, int], np.dtype[np.uint8]], length: int) -> Hashes:
    m = np.uint32(_M)
    h = np.full(len(data), _SEED ^ length, np.uint32)
    whole = length & ~3
    words = np.ascontiguousarray(data[:, :whole]).view("<u4").astype(np.uint32) if whole else data[:, :0].astype("u4")
    for k in words.T:
        k = k * m
        k ^= k >> np.uint32(24)
        h = h * m ^ k * m
    for place in reversed(range(whole, length)):
        h ^= data[:, place].astype(np.uint32) << np.uint32(8 * (place - whole))
    if length > whole:
        h = h * m
    h ^= h >> np.uint32(13)
    h = h * m
    return h ^ h >> np.uint32(15)


def partitions_of(
    keys: Sequence[bytes | None], initial: int, partitions: int, keyless_before: int
) -> tuple[list[int], int]:
    """The partition of each row, and the number of keyless rows so far, these included.

    `initial`: the initial count.
    """
    chosen = np.empty(len(keys), np.int64)
    keyless = np.fromiter((key is None for key in keys), bool, len(keys))
    count = int(keyless.sum())
    chosen[keyless] = (np.arange(keyless_before, keyless_before + count) // STICKY_ROWS) % partitions
    size = split_size(initial, partitions)
    places = (murmur2([key for key in keys if key is not None]) & _MASK).astype(np.int64) % (2 * size)
    chosen[~keyless] = np.where(places < partitions, places, places - size)
    return chosen.tolist(), keyless_before + count
