"""Reads stored bytes until they pass their check: a bad transfer is repeated, damage is confirmed.

    read  ->  the check succeeds                        its result
          ->  fails; the last SAME_READS were equal     DamagedError: the bucket has these bytes
          ->  fails; READS_MAX reads                    BadTransferError: to be repeated later, nothing is known
          ->  fails                                     a pause, then another read

Place: under every path that writes what it read (verified.py has the check of batches); a caller that has read several
extents at once gives the bytes of that read as the first one.
Invariant: what failed its check is never returned. One sound read is enough, after any number of others; reads that
differ say nothing about the bucket. Pauses grow, and together they take at most PAUSES_MAX_S for one VerifiedReads, so
that a file that is damaged all over does not hold a job for hours.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TypeVar

from headrace.storage.clock import Clock
from headrace.storage.errors import BadTransferError, CorruptError, DamagedError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange, ObjectStore
from headrace.storage.repetition import Repetitions
from headrace.storage.segment.format import Footer, decode_footer, tail_bytes
from headrace.storage.segment.reader import TAIL_BYTES
from headrace.storage.segment.verified import SoundBatch, StoredExtent, sound_batches

logger = logging.getLogger(__name__)

T = TypeVar("T")

READS_MAX = 5
SAME_READS = 3
"""How many reads in a row return the same wrong bytes before these are taken for what the bucket has."""
PAUSES_S = (0.2, 0.6, 1.5, 3.0)
"""Mean seconds between two reads."""
PAUSES_MAX_S = 30.0
LINES = 5
"""Log lines per minute about failed checks."""


class ReadVerdict(enum.Enum):
    """What follows from failed reads."""

    AGAIN = enum.auto()
    DAMAGED = enum.auto()
    BAD_TRANSFER = enum.auto()


def judge(digests: Sequence[bytes]) -> ReadVerdict:
    """Decide after failed reads, from the digests of what each returned, in order. Pure."""
    if len(digests) >= SAME_READS and len(set(digests[-SAME_READS:])) == 1:
        return ReadVerdict.DAMAGED
    return ReadVerdict.BAD_TRANSFER if len(digests) >= READS_MAX else ReadVerdict.AGAIN


class VerifiedReads:
    """Reads from one store, of one job or one scan."""

    def __init__(
        self, store: ObjectStore, clock: Clock, rng: random.Random, on_failed: Callable[[], object] = lambda: None
    ) -> None:
        """`on_failed` is called for each read that fails its check."""
        self.store = store
        self._clock, self._rng, self._on_failed = clock, rng, on_failed
        self._pauses_left_s = PAUSES_MAX_S
        self._repetitions = Repetitions(lines=LINES)

    async def batches(
        self,
        extent: StoredExtent,
        *,
        leader_epoch: int,
        start: int = 0,
        end: int | None = None,
        first: bytes | memoryview | CorruptError | None = None,
    ) -> list[SoundBatch]:
        """The extent's batches, as sound_batches. `first`: what a read returned already. Errors as `read`."""
        place = (
            f"file={extent.file_id} position={extent.position} length={extent.length}"
            f" offsets={extent.base_offset}-{extent.last_offset}"
        )
        return await self.read(
            object_key(extent.file_id),
            ByteRange(extent.position, extent.length),
            lambda data: sound_batches(data, extent, leader_epoch=leader_epoch, start=start, end=end),
            place,
            first,
        )

    async def footer(self, key: str, size: int) -> Footer:
        """The footer of a segment file of `size` bytes, in one read, or two if it is large. Errors as `read`."""
        first = min(size, TAIL_BYTES)
        if first <= 0:
            raise CorruptError(f"segment file too short: key={key} size={size}")

        def decoded(tail: memoryview) -> Footer | int:
            needed = tail_bytes(tail, size)
            return needed if needed > len(tail) else decode_footer(tail, size)

        place = f"footer of key={key} size={size}"
        found = await self.read(key, ByteRange(size - first, first), decoded, place)
        if isinstance(found, Footer):
            return found
        return await self.read(key, ByteRange(size - found, found), lambda tail: decode_footer(tail, size), place)

    async def read(
        self,
        key: str,
        byte_range: ByteRange | None,
        check: Callable[[memoryview], T],
        place: str,
        first: bytes | memoryview | CorruptError | None = None,
    ) -> T:
        """Return what `check` makes of the object's bytes, or of the range's; it raises CorruptError for wrong ones.

        DamagedError if the bucket has wrong bytes, BadTransferError if it is not known; both name `place`. Else as the
        store.
        """
        digests: list[bytes] = []
        while True:
            body, first = (await self._get(key, byte_range) if first is None else first), None
            try:
                if isinstance(body, CorruptError):
                    raise body
                return await asyncio.to_thread(check, memoryview(body))
            except CorruptError as error:
                wrong = error
            digests.append(digest(body))
            self._on_failed()
            self._note(place, len(digests), wrong)
            verdict = judge(digests)
            if verdict is ReadVerdict.DAMAGED:
                raise DamagedError(f"stored bytes are damaged: {place} reads={len(digests)} error={wrong}") from wrong
            if verdict is ReadVerdict.BAD_TRANSFER:
                raise BadTransferError(f"each read was altered: {place} reads={len(digests)} error={wrong}") from wrong
            await self._pause(len(digests))

    async def _get(self, key: str, byte_range: ByteRange | None) -> bytes | CorruptError:
        try:
            return await self.store.get(key, byte_range)
        except CorruptError as error:
            return error

    async def _pause(self, failed: int) -> None:
        seconds = min(PAUSES_S[failed - 1] * (0.5 + self._rng.random()), self._pauses_left_s)
        self._pauses_left_s -= seconds
        await self._clock.sleep(seconds)

    def _note(self, place: str, reads: int, error: CorruptError) -> None:
        left_out = self._repetitions.left_out("altered", self._clock.monotonic())
        if left_out is not None:
            logger.warning("bytes failed their check: %s reads=%d left_out=%d error=%s", place, reads, left_out, error)


def digest(body: bytes | memoryview | CorruptError) -> bytes:
    """Return that of the bytes; of a read that the store itself refused as short or altered, that of what it says."""
    if isinstance(body, CorruptError):
        return b"refused " + str(body).encode()
    return blake2b(body, digest_size=32).digest()
