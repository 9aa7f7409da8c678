"""Merges to level 2, each larger than the one before, in a process with an agent's allocator settings.

`python -m tests.cli.process.merges_in_a_row kept|given-back` prints a JSON list: resident bytes after each merge.
Between merges the process takes memory that it keeps, as an agent takes it for its cache. The minute after a merge
passes at once: only the looks are made.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid

from headrace.cli.process.heap import LOOKS, IdleHeap, tune_allocator
from headrace.compactor.merge import MergeCounts, MergeLimits, merge
from headrace.compactor.plan import PartitionPlan, Plan
from headrace.metastore.api.read import Extent
from headrace.storage.file_id import object_key
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.segment.format import BODY_START
from load.benchmarks.memory import resident_bytes
from tests.manual_clock import ManualClock
from tests.storage.altered_reads import reads_of

PARTITIONS, RECORDS = 100, 10
CACHED_BYTES = 40_000


async def merge_once(files: int, cached: list[bytearray]) -> None:
    """Merge so many files of one batch per partition; keep something for each partition meanwhile."""
    store = MemoryStore()
    batch = encode_batch([Record(n, 1_000, None, bytes(90)) for n in range(RECORDS)], base_offset=0)
    ids = [uuid.UUID(int=number + 1) for number in range(files)]
    for file_id in ids:
        await store.put(object_key(file_id), bytes(BODY_START) + batch * PARTITIONS)

    def extents(partition: int) -> tuple[Extent, ...]:
        place = BODY_START + partition * len(batch)
        return tuple(
            Extent(partition, n * RECORDS, (n + 1) * RECORDS - 1, file_id, place, len(batch), 0, 0)
            for n, file_id in enumerate(ids)
        )

    partitions = (PartitionPlan(p, uuid.UUID(int=1), p, None, extents(p)) for p in range(PARTITIONS))
    async for _ in merge(Plan(2, 0, tuple(partitions)), reads_of(store), MergeLimits(), MergeCounts()):
        cached += [bytearray(CACHED_BYTES) for _ in range(10)]


async def main(gives_back: bool) -> list[int]:
    """Resident bytes after each merge."""
    heap, cached, resident = IdleHeap(ManualClock()), list[bytearray](), []
    for files in (64, 128, 192, 256, 320, 384):
        await merge_once(files, cached)
        for _ in range(LOOKS if gives_back else 0):
            heap.look()
        resident.append(resident_bytes(os.getpid()))
    return resident


if __name__ == "__main__":
    tune_allocator()
    print(json.dumps(asyncio.run(main(sys.argv[1] == "given-back"))))
