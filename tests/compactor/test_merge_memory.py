"""A merge takes memory by its limits: not by what there is to merge, nor by what a batch unpacks to.

Counted are bytes that Python and numpy hold (tracemalloc), not the process's size, which says what was once.
"""

from __future__ import annotations

import tracemalloc
import uuid
import weakref
from collections.abc import Callable

import pytest

from headrace.compactor.merge import GrowingFile, MergeCounts, MergeLimits, merge
from headrace.compactor.plan import PartitionPlan, Plan
from headrace.config.memory_budget import MERGE_COPIES
from headrace.metastore.api.read import Extent
from headrace.storage.file_id import object_key
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import read_header
from headrace.storage.segment.format import BODY_START
from tests.storage.altered_reads import reads_of
from tests.storage.batches import crowded_batch

MIB = 1024 * 1024
LIMITS = MergeLimits(file_bytes=4 * MIB, extent_bytes=MIB, batch_bytes=MIB // 8, read_bytes=4 * MIB)
LARGER_BY = MIB // 2
"""A file exceeds its limit by one extent at most, in both copies; footers and Python's objects."""
UNPACKED = 40 * LIMITS.batch_bytes
"""What the records of two merged batches may take as Python objects, if they are as small as can be."""


async def peak_of(
    level: int, batch: bytes, *, files: int, partitions: int = 1, codec: Codec | None = None
) -> tuple[int, MergeCounts]:
    """Merge files of eight such batches per partition; (bytes held at the worst moment, what the merge met)."""
    store, run = MemoryStore(), batch * 8
    records = 8 * (read_header(batch).last_offset_delta + 1)
    ids = [uuid.UUID(int=7 << 76 | number + 1) for number in range(files)]
    for file_id in ids:
        await store.put(object_key(file_id), bytes(BODY_START) + run * partitions)

    def extents(partition: int) -> tuple[Extent, ...]:
        position = BODY_START + partition * len(run)
        return tuple(
            Extent(partition, n * records, (n + 1) * records - 1, file_id, position, len(run), 0, 0)
            for n, file_id in enumerate(ids)
        )

    plan = Plan(level, 0, tuple(PartitionPlan(p, uuid.UUID(int=1), p, codec, extents(p)) for p in range(partitions)))
    counts, covered = MergeCounts(), 0
    tracemalloc.start()
    try:
        async for file in merge(plan, reads_of(store), LIMITS, counts):
            covered += sum(swap.last_offset - swap.base_offset + 1 for swap in file.swaps)
            del file
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert covered == files * records * partitions, "nothing is left out"
    return peak, counts


@pytest.mark.parametrize("level", [1, 2])
async def test_an_ordinary_merge_holds_two_files_and_its_reads(level: int) -> None:
    """Batches of 62 KB from 16 files: 16 MB of them, and four times as much, which takes no more. Together these are
    the MERGE_COPIES of the memory budget, as reads have the size of a file."""
    value = bytes(range(256)) * 4
    batch = encode_batch([Record(n, 1_000, b"key", value) for n in range(60)], base_offset=0)
    reads = 16 * 8 * len(batch)
    for partitions in (2, 8):
        peak, counts = await peak_of(level, batch, files=16, partitions=partitions)
        assert peak < (MERGE_COPIES - 1) * LIMITS.file_bytes + reads + LARGER_BY
        assert counts.batches_in == 16 * 8 * partitions
        assert counts.batches_out == counts.batches_in // level


def test_a_complete_file_drops_its_pieces() -> None:
    """While it is stored, it is in memory once."""
    piece = memoryview(bytearray(encode_batch([Record(0, 1_000, None, b"value")], base_offset=0)))
    kept, file = weakref.ref(piece), GrowingFile()
    file.add(PartitionPlan(0, uuid.UUID(int=1), 0, None, ()), (read_header(piece), piece))
    size, size_in_file = file.size, piece.nbytes
    del piece
    assert kept() is not None
    assert file.finish().body_bytes == size - BODY_START == size_in_file
    assert kept() is None


def zstd(count: int, value: bytes) -> bytes:
    return encode_batch([Record(n, 1, b"", value) for n in range(count)], codec=Codec.ZSTD, base_offset=0)


BOMBS: dict[str, Callable[[], bytes]] = {
    "9,000,000 records": lambda: bytes(crowded_batch(9_000_000)),
    "as many records as a merge opens": lambda: zstd(LIMITS.batch_bytes // 10, b""),
    "one record of 60 MiB": lambda: zstd(1, bytes(60 * MIB)),
    "ten records of 20 KB": lambda: zstd(10, bytes(20_000)),
}
"""Each of a few KB, and sound; by what it unpacks to."""


@pytest.mark.parametrize("codec", [None, pytest.param(Codec.NONE, marks=pytest.mark.slow), Codec.GZIP], ids=str)
@pytest.mark.parametrize("name", list(BOMBS))
async def test_what_a_batch_unpacks_to_decides_nothing(name: str, codec: Codec | None) -> None:
    """Also in topics with a compression.type that makes the merge open every batch."""
    peak, _ = await peak_of(2, BOMBS[name](), files=2, codec=codec)
    assert peak < UNPACKED + LIMITS.file_bytes
