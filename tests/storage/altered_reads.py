"""A store that alters what it returns, and reads that do not wait for it.

Fault model: the bucket is sound; at a rate, or when a test says so, one or several bytes of what a GET returns are
others, or its end is missing. Any number of GETs in a row may be struck, the same one again in another way. Seeded.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from headrace.storage.clock import SystemClock
from headrace.storage.objects.store import ByteRange, ObjectStore, StoreDecorator
from headrace.storage.segment.rereading import VerifiedReads

Alter = Callable[[str, ByteRange | None, bytes], bytes]


class InstantClock(SystemClock):
    """The machine's clock, without waiting."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def reads_of(store: ObjectStore, seed: int = 0) -> VerifiedReads:
    """Reads without pauses."""
    return VerifiedReads(store, InstantClock(), random.Random(seed))


class AlteringStore(StoreDecorator):
    """Alters answers at `rate`, or as `alter` says; counts what it did."""

    def __init__(
        self,
        inner: ObjectStore,
        rng: random.Random | None = None,
        *,
        rate: float = 0.0,
        prefix: str = "",
        alter: Alter | None = None,
    ) -> None:
        super().__init__(inner)
        self._rng, self.rate, self._prefix, self._alter = rng or random.Random(0), rate, prefix, alter
        self.gets = self.altered = 0

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        body = await super().get(key, byte_range)
        self.gets += 1
        if not key.startswith(self._prefix):
            return body
        found = body
        if self._alter is not None:
            found = self._alter(key, byte_range, body)
        elif body and self._rng.random() < self.rate:
            found = altered(body, self._rng)
        self.altered += found != body
        return found


def altered(body: bytes, rng: random.Random) -> bytes:
    """Other bytes: one to four of them changed, seldom the end cut off. Half of the changes are in the first 64."""
    if rng.random() < 0.05:
        return body[: rng.randrange(len(body))]
    changed = bytearray(body)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(min(len(changed), 64) if rng.random() < 0.5 else len(changed))
        changed[at] ^= rng.randrange(1, 256)
    return bytes(changed)


def flip_first(times: int, object_key: str, position: int, bit: int = 1) -> Alter:
    """Alter the byte at `position` of the object in its first `times` reads, each time in the same way."""
    left = [times]

    def alter(key: str, byte_range: ByteRange | None, body: bytes) -> bytes:
        at = position - (0 if byte_range is None else byte_range.start)
        if key != object_key or not left[0] or not 0 <= at < len(body):
            return body
        left[0] -= 1
        return flipped(body, [at], bit)

    return alter


def flipped(body: bytes, positions: Sequence[int], bit: int = 1) -> bytes:
    """The body with this bit of these bytes changed."""
    changed = bytearray(body)
    for at in positions:
        changed[at] ^= bit
    return bytes(changed)
