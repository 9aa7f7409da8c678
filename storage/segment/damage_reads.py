"""Read a run of batches until it is known whether the stored object is damaged, or only what came of it.

Place: under the agents' read path (agent/fetch/files/damage.py) and what mends or audits extents (compactor/mending/).
Invariant: a run is damaged as rereading.py decides for what is written on: the last reads gave the same bytes, and no
read was sound. Reads that differ from each other are bad transfers: they say nothing about the object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from headrace.storage.errors import BadTransferError, CorruptError
from headrace.storage.objects.store import ByteRange, ObjectStore
from headrace.storage.records.header import batch_crc
from headrace.storage.segment.damage import BatchMark, BatchRun, Piece, damaged, pieces
from headrace.storage.segment.format import PartitionEntry
from headrace.storage.segment.reader import load_footer, walk_batches
from headrace.storage.segment.rereading import ReadVerdict, digest, judge

PAUSE_S = 0.2
"""Before each further read. Clients wait."""


class Examined(NamedTuple):
    """The pieces of a run, and its bytes as they were read last."""

    pieces: list[Piece]
    body: bytes

    @property
    def damaged(self) -> list[Piece]:
        """The damaged pieces; none if the run is sound."""
        return damaged(self.pieces)


async def examine(
    store: ObjectStore, key: str, run: BatchRun, marks: Sequence[BatchMark], sleep: Callable[[float], Awaitable[None]]
) -> Examined:
    """Return what the object has. BadTransferError if the reads differ from each other; what the store raises."""
    digests: list[bytes] = []
    while True:
        body = await store.get(key, ByteRange(run.position, run.length))
        if len(body) == run.length:
            found = await asyncio.to_thread(pieces, memoryview(body), run, marks)
            if not damaged(found):
                return Examined(found, body)
        digests.append(digest(body))
        verdict = judge(digests)
        if verdict is ReadVerdict.DAMAGED and len(body) == run.length:
            return Examined(found, body)
        if verdict is not ReadVerdict.AGAIN:
            place = f"key={key} position={run.position} length={run.length}"
            raise BadTransferError(f"reads differ from each other, or are short: {place}")
        await sleep(PAUSE_S)


async def footer_marks(store: ObjectStore, key: str, size: int, run: BatchRun) -> list[BatchMark]:
    """Return the marks of a run in an object of `size` bytes; none if footer or batches before the run are damaged."""
    try:
        footer = await load_footer(store, key, size)
        for entry in footer.partitions:
            if entry.position <= run.position < entry.position + entry.length:
                return run_marks(entry, await records_before(store, key, entry, run.position), run)
    except CorruptError:
        pass
    return []


def run_marks(entry: PartitionEntry, before: int, run: BatchRun) -> list[BatchMark]:
    """Return the marks inside a run. `before`: the partition's records in the file before it."""
    found = (BatchMark(m.position, run.base_offset + m.record_position - before) for m in entry.index_entries)
    return [
        mark
        for mark in found
        if run.position < mark.position < run.position + run.length and run.base_offset < mark.offset <= run.last_offset
    ]


async def records_before(store: ObjectStore, key: str, entry: PartitionEntry, position: int) -> int:
    """The partition's records in the file before `position`; reads at most one index interval to count them.

    CorruptError if a batch there has a wrong checksum: a wrong count would be a wrong offset.
    """
    records, start = 0, entry.position
    for mark in entry.index_entries:
        if mark.position > position:
            break
        records, start = mark.record_position, mark.position
    if start < position:
        body = memoryview(await store.get(key, ByteRange(start, position - start)))
        for at, header in walk_batches(body):
            if batch_crc(body[at : at + header.size]) != header.crc:
                raise CorruptError(f"batch checksum mismatch: key={key} position={start + at}")
            records += header.last_offset_delta + 1
    return records
