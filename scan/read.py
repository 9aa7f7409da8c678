"""Reads the extents of a split: a few large requests ahead of the decoding, on a thread with an event loop.

Place: in each task of Spark and in `headrace export`, between the plan and columns.py.
Invariant: a dead range of more than 1 MiB is not read (storage/objects/merging.py); at most two windows are in memory.
Only verified batches are returned: they become rows of tables, exports and other systems. An extent that fails its
check is read again, alone, as storage/segment/rereading.py says.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from headrace.metastore.api.read import AbortedRange
from headrace.scan.background_loop import BackgroundLoop
from headrace.scan.cluster import BucketAddress
from headrace.scan.errors import UnreadableFileError
from headrace.scan.plan import ExtentSlice, PlannedPartition, Split
from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError, DamagedError, InvalidError, NotFoundError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange
from headrace.storage.segment.rereading import VerifiedReads
from headrace.storage.segment.verified import NO_EPOCH, SoundBatch, sound_batches

WINDOW_BYTES = 16 * 1024 * 1024
PARALLEL_FILES = 16


class SlicedExtent(NamedTuple):
    """A slice of a partition, with its place for errors."""

    topic: str
    partition: int
    slice: ExtentSlice

    def __str__(self) -> str:
        one = self.slice
        return (
            f"topic={self.topic} partition={self.partition} offsets={one.base_offset}-{one.last_offset}"
            f" file={one.file_id} position={one.position} length={one.length}"
        )


class ReadExtent(NamedTuple):
    """A slice with its extent's bytes, or why the store did not return them."""

    place: SlicedExtent
    data: memoryview | CorruptError


class SplitReader:
    """Reads splits from one bucket; close it."""

    def __init__(self, reads: VerifiedReads, *, pin_hint: str) -> None:
        """`pin_hint`: what to say if a file is gone."""
        self._reads, self._pin_hint = reads, pin_hint
        self._loop = BackgroundLoop()

    @classmethod
    def open(cls, bucket: BucketAddress, clock: Clock, rng: random.Random, *, pin_hint: str) -> SplitReader:
        """Open a reader with a connection that `close` closes."""
        return cls(VerifiedReads(bucket.open(clock, rng), clock, rng), pin_hint=pin_hint)

    def batches(self, split: Split) -> Iterator[tuple[SlicedExtent, SoundBatch]]:
        """The batches with records of the split, without aborted ones; of each partition in offset order.

        UnreadableFileError; BadTransferError if each read of an extent was altered.
        """
        ahead: Future[list[ReadExtent]] | None = None
        for window in _windows(split, WINDOW_BYTES):
            current, ahead = ahead, self._loop.begin(self._read_window(window))
            if current is not None:
                yield from self._open_all(current.result())
        if ahead is not None:
            yield from self._open_all(ahead.result())

    def close(self) -> None:
        """Cancel reads in progress, close the connection and end the thread."""
        self._loop.run(self._reads.store.close())
        self._loop.close()

    def _open_all(self, window: Sequence[ReadExtent]) -> Iterator[tuple[SlicedExtent, SoundBatch]]:
        for place, data in window:
            one = place.slice
            for batch in self._verified(place, data):
                if not _is_aborted(batch, one.aborted):
                    yield place, batch

    def _verified(self, place: SlicedExtent, data: memoryview | CorruptError) -> list[SoundBatch]:
        """The slice's batches: on this thread, unless the extent has to be read again."""
        one = place.slice
        if not isinstance(data, CorruptError):
            with suppress(CorruptError):
                return sound_batches(data, one, leader_epoch=NO_EPOCH, start=one.start, end=one.end)
        again = self._reads.batches(one, leader_epoch=NO_EPOCH, start=one.start, end=one.end, first=data)
        try:
            return self._loop.run(again)
        except DamagedError as error:
            raise UnreadableFileError(f"segment file is damaged: {place}: {error}") from error
        except InvalidError as error:
            raise self._unreadable(place, error) from error

    async def _read_window(self, window: Sequence[SlicedExtent]) -> list[ReadExtent]:
        files: dict[uuid.UUID, list[int]] = {}
        for number, place in enumerate(window):
            files.setdefault(place.slice.file_id, []).append(number)
        found: dict[int, memoryview | CorruptError] = {}
        places = asyncio.Semaphore(PARALLEL_FILES)

        async def read_file(numbers: list[int]) -> None:
            async with places:
                found.update(zip(numbers, await self._read_file([window[n] for n in numbers]), strict=True))

        reads = [asyncio.ensure_future(read_file(numbers)) for numbers in files.values()]
        try:
            await asyncio.gather(*reads)
        finally:
            for read in reads:
                read.cancel()
        return [ReadExtent(place, found[number]) for number, place in enumerate(window)]

    async def _read_file(self, places: Sequence[SlicedExtent]) -> Sequence[memoryview | CorruptError]:
        ranges = [ByteRange(place.slice.position, place.slice.length) for place in places]
        try:
            bodies = await self._reads.store.get_many(object_key(places[0].slice.file_id), ranges)
            return [memoryview(body) for body in bodies]
        except CorruptError as error:
            return [error] * len(places)  # each is read again by itself
        except InvalidError as error:
            raise self._unreadable(places[0], error) from error

    def _unreadable(self, place: SlicedExtent, error: InvalidError) -> UnreadableFileError:
        if isinstance(error, NotFoundError):
            return UnreadableFileError(f"segment file is gone: {place}. {self._pin_hint}")
        return UnreadableFileError(f"segment file cannot be read: {place}: {error}")


def _is_aborted(batch: SoundBatch, aborted: Sequence[AbortedRange]) -> bool:
    return batch.header.is_transactional and any(
        one.producer_id == batch.header.producer_id and one.first_offset <= batch.offset < one.last_offset
        for one in aborted
    )


def _windows(split: Split, window_bytes: int) -> Iterator[list[SlicedExtent]]:
    """Slices to read together, about `window_bytes`: of small partitions in one file together, each in offset order."""
    window: list[SlicedExtent] = []
    size = 0
    for place in _in_turn(split):
        if window and size + place.slice.length > window_bytes:
            yield window
            window, size = [], 0
        window.append(place)
        size += place.slice.length
    if window:
        yield window


def _in_turn(split: Split) -> Iterator[SlicedExtent]:
    """The slices of all partitions in the order of their files, so that a file is read once; a partition's in its own.

    Continues with the partition that has the oldest next file.
    """
    left: list[tuple[PlannedPartition, int]] = [(partition, 0) for partition in split]
    while left:
        index, (partition, at) = min(
            enumerate(left), key=lambda each: (each[1][0].slices[each[1][1]].file_id, each[1][1])
        )
        yield SlicedExtent(partition.topic, partition.partition, partition.slices[at])
        if at + 1 < len(partition.slices):
            left[index] = partition, at + 1
        else:
            del left[index]
