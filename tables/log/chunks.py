"""Reads what one commit appends: raw rows of several partitions, under a read pin.

    step (policy.py) -> how far each partition gets -> plan -> raw rows

Place: between the policy and the rows of the table; used by worker.py and dead_letters.py.
Invariant: all files that a chunk needs are pinned while it is read.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import pyarrow as pa

from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import Extent, ExtentQuery
from headrace.scan.cluster import ScannedCluster
from headrace.scan.columns import arrow_schema, record_batches
from headrace.scan.options import READ_PIN_MS
from headrace.scan.partitions import ScanPartition
from headrace.scan.plan import PlannedPartition, WantedOffsets, pin, plan_in_bucket
from headrace.scan.read import SplitReader
from headrace.storage.file_id import is_inline
from headrace.tables.log.policy import AppendStep
from headrace.tables.rows import COLUMNS, table_of
from headrace.tables.state import TablePosition

PIN_HINT = "A commit took more than an hour"
"""What the reader of a chunk says if a file is gone: the pin has ended."""
CHUNK_BYTES = 64 * 1024 * 1024
"""Stored bytes that one commit appends, at most about."""
OPENED_BYTES = 128 * 1024 * 1024
"""The same of opened bytes: a chunk ends early if its records unpack to more."""


class Reach(NamedTuple):
    """How far one commit gets in a partition. `last_offsets`, `epochs`: of its extents, in order."""

    position: TablePosition
    last_offsets: list[int]
    epochs: list[int]

    def cut(self, offset: int) -> TablePosition:
        """Return the position if it ends before `offset`, which is above the first one."""
        return TablePosition(offset, self.epochs[bisect_left(self.last_offsets, offset - 1)])

    def shortened(self, offset: int) -> Reach:
        """Return the same up to this offset, which is above the first one."""
        return self._replace(position=self.cut(offset))


def rows_of(reader: SplitReader, planned: Sequence[PlannedPartition]) -> pa.Table:
    """The rows of these extents, as the table takes them. Blocks."""
    schema = arrow_schema(COLUMNS)
    return table_of(batch for each in planned for batch in record_batches(reader.batches((each,)), schema))


class RowsWithin(NamedTuple):
    """Rows of at most so many bytes. `ends`: where partitions end that were not read to their end; None: at once."""

    rows: pa.Table
    ends: dict[int, int | None]


def rows_within(reader: SplitReader, planned: Sequence[PlannedPartition], opened_bytes: int) -> RowsWithin:
    """Read the rows of these extents, in this order, until they have so many bytes. Blocks."""
    schema, ends = arrow_schema(COLUMNS), dict[int, int | None]()
    found: dict[int, list[pa.RecordBatch]] = {}
    size = 0
    for each in planned:
        if size >= opened_bytes:
            ends[each.partition] = None
            continue
        batches = found[each.partition] = []
        for batch in record_batches(reader.batches((each,)), schema):
            batches.append(batch)
            size += batch.nbytes
            if size >= opened_bytes:
                ends[each.partition] = batch.column("offset")[-1].as_py() + 1
                break
    return RowsWithin(table_of(batch for _, batches in sorted(found.items()) for batch in batches), ends)


@dataclass(slots=True)
class ChunkReader:
    """Reads chunks of one cluster. `chunk_bytes` as CHUNK_BYTES, `opened_bytes` as OPENED_BYTES."""

    cluster: ScannedCluster
    reader: SplitReader
    chunk_bytes: int = CHUNK_BYTES
    opened_bytes: int = OPENED_BYTES

    @property
    def _metastore(self) -> Metastore:
        return self.cluster.metastore

    async def read(
        self, step: AppendStep, partitions: Mapping[int, ScanPartition]
    ) -> tuple[dict[int, Reach], pa.Table]:
        """The rows of about `chunk_bytes`, or `opened_bytes`, and how far they reach. DataLossError."""
        async with self.planned(step, partitions) as (reached, planned):
            self.cluster.rng.shuffle(planned)  # each partition is the first at times
            rows, ends = await asyncio.to_thread(rows_within, self.reader, planned, self.opened_bytes)
            for partition, end in ends.items():
                if end is None:
                    del reached[partition]
                elif end < reached[partition].position.offset:
                    reached[partition] = reached[partition].shortened(end)
            return reached, rows

    @asynccontextmanager
    async def planned(
        self, step: AppendStep, partitions: Mapping[int, ScanPartition]
    ) -> AsyncIterator[tuple[dict[int, Reach], list[PlannedPartition]]]:
        """The extents of about `chunk_bytes`, and how far they reach; pinned meanwhile. DataLossError."""
        pinned = await pin(self._metastore.jobs, "tables", READ_PIN_MS)
        try:
            reached = await self._reach(step, partitions)
            ranges = {
                partitions[p]: WantedOffsets(step.wanted[p].start, each.position.offset) for p, each in reached.items()
            }
            yield reached, await self._plan(ranges)
        finally:
            await self._metastore.jobs.release_pins([pinned])

    async def read_ranges(self, ranges: Mapping[ScanPartition, WantedOffsets]) -> pa.Table:
        """The rows in these offsets. DataLossError."""
        pinned = await pin(self._metastore.jobs, "tables", READ_PIN_MS)
        try:
            return await self._rows(await self._plan(ranges))
        finally:
            await self._metastore.jobs.release_pins([pinned])

    async def _plan(self, ranges: Mapping[ScanPartition, WantedOffsets]) -> list[PlannedPartition]:
        clock = self.cluster.clock
        return await plan_in_bucket(self._metastore, clock, dict(ranges), fail_on_data_loss=True, committed=True)

    async def _rows(self, planned: Sequence[PlannedPartition]) -> pa.Table:
        return await asyncio.to_thread(rows_of, self.reader, planned)

    async def _reach(self, step: AppendStep, partitions: Mapping[int, ScanPartition]) -> dict[int, Reach]:
        """Return where one commit may get: the ends of the extents that have about `chunk_bytes` together, up to the
        first inline file, which a later round finds moved.
        """
        order = list(step.wanted)
        self.cluster.rng.shuffle(order)  # each of very many partitions gets its turn
        queries = [ExtentQuery(partitions[p].key, step.wanted[p].start, self.chunk_bytes) for p in order]
        answers = await self._metastore.index.find_extents(queries, self.chunk_bytes)
        reached = {}
        for partition, answer in zip(order, answers, strict=True):
            extents = list(takewhile(_is_in_bucket, answer.extents))
            if extents:
                last = extents[-1]
                end = TablePosition(min(last.last_offset + 1, step.wanted[partition].end), last.leader_epoch)
                lasts = [each.last_offset for each in extents]
                reached[partition] = Reach(end, lasts, [each.leader_epoch for each in extents])
        return dict(sorted(reached.items()))


def _is_in_bucket(extent: Extent) -> bool:
    return extent.file_id is None or not is_inline(extent.file_id)
