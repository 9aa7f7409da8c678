"""The last offset of each key in the dirty part of a partition, by a digest of the key.

Place: filled from the dirty extents before a pass over the partition (job.py), asked for every record of the pass.
Invariant: `newest` never returns an offset of another key: digests have 128 bits and a secret that clients do not know,
so none can make two keys with one digest. Memory is at most BYTES_PER_KEY for each key that fits, and those of one
extent more: a map is full after the extent that reaches its capacity, and the pass ends there.
Source: Kafka's SkimpyOffsetMap (16 bytes of MD5 and an offset per key).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy
from numpy.typing import NDArray

DIGEST_BYTES = 16
BYTES_PER_KEY = 112
"""While two sorted parts become one, at the most (tests/compactor/cleaning/test_key_map.py measures it)."""
ABSENT = -1
_WAITING_MIN = 65_536
"""Records that wait unsorted, at least."""

Digests = NDArray[numpy.bytes_]
Offsets = NDArray[numpy.int64]


def joined_digests(keys: Iterable[bytes], secret: bytes) -> bytes:
    """DIGEST_BYTES for each key."""
    return b"".join([blake2b(key, digest_size=DIGEST_BYTES, key=secret).digest() for key in keys])


class KeyMap:
    """Digests in order, each with the highest offset that was added for it."""

    def __init__(self, buffer_bytes: int, secret: bytes) -> None:
        """`buffer_bytes`: log.cleaner.dedupe.buffer.size; `secret`: up to 64 bytes, of this map alone."""
        self.capacity = max(buffer_bytes // BYTES_PER_KEY, 1)
        self._secret = secret
        self._digests: Digests = numpy.empty(0, f"S{DIGEST_BYTES}")
        self._offsets: Offsets = numpy.empty(0, numpy.int64)
        self._waiting: list[tuple[Digests, Offsets]] = []
        self._waiting_count = 0

    def digests(self, keys: Iterable[bytes]) -> Digests:
        """Return the digests of each key."""
        return numpy.frombuffer(joined_digests(keys, self._secret), f"S{DIGEST_BYTES}")

    def add(self, digests: Digests, offsets: Offsets) -> None:
        """Records in offset order, all later than those that were added before."""
        if len(digests):
            self._waiting.append((digests, offsets))
            self._waiting_count += len(digests)
            if self._waiting_count >= max(_WAITING_MIN, min(self.capacity, len(self._digests)) // 4):
                self._sort_in()

    def newest(self, digests: Digests) -> Offsets:
        """The highest offset of each digest; ABSENT where there is none."""
        self._sort_in()
        if not len(self._digests):
            return numpy.full(len(digests), ABSENT, numpy.int64)
        places = numpy.searchsorted(self._digests, digests)
        places[places == len(self._digests)] = 0
        return numpy.where(self._digests[places] == digests, self._offsets[places], ABSENT)

    def are_superseded(self, keys: Iterable[bytes], offsets: Sequence[int]) -> NDArray[numpy.bool_]:
        """A rewrite.LaterRecords."""
        return self.newest(self.digests(keys)) > numpy.array(offsets, numpy.int64)

    def __len__(self) -> int:
        """The number of keys."""
        self._sort_in()
        return len(self._digests)

    @property
    def is_full(self) -> bool:
        """Whether no further extent may be added."""
        return self._waiting_count + len(self._digests) >= self.capacity and len(self) >= self.capacity

    @property
    def is_exceeded(self) -> bool:
        """Whether it holds more keys than it should."""
        return len(self) > self.capacity

    def _sort_in(self) -> None:
        """Add what waits: later offsets replace earlier ones."""
        if not self._waiting:
            return
        waiting, self._waiting, self._waiting_count = self._waiting, [], 0
        digests = numpy.concatenate([digests for digests, _ in waiting])
        offsets = numpy.concatenate([offsets for _, offsets in waiting])
        order = numpy.argsort(digests, kind="stable")
        digests, offsets = digests[order], offsets[order]
        is_last = numpy.append(digests[1:] != digests[:-1], True)
        digests, offsets = digests[is_last], offsets[is_last]
        if len(self._digests):
            places = numpy.searchsorted(self._digests, digests)
            places[places == len(self._digests)] = 0
            is_known = self._digests[places] == digests
            self._offsets[places[is_known]] = offsets[is_known]
            digests, offsets = digests[~is_known], offsets[~is_known]
            places = numpy.searchsorted(self._digests, digests)
            digests = numpy.insert(self._digests, places, digests)
            offsets = numpy.insert(self._offsets, places, offsets)
        self._digests, self._offsets = digests, offsets
