"""Exports the records of one topic, chunk by chunk.

    for each partition, while offsets are left:
        state: this chunk is being written  ->  pin  ->  plan  ->  rows  ->  files per date  ->  state: it is done

Place: under `headrace export`; the target is any object store (a directory or a bucket).
Invariant: as state.py: after a crash at any step a rerun leaves each offset in exactly one file. One export per target
at a time. Log ends (with `committed` last stable offsets) are fixed at the beginning, so an export ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from headrace.metastore.api.read import ExtentQuery, OffsetKind, ReadApi
from headrace.scan.cluster import ScannedCluster
from headrace.scan.columns import arrow_schema, record_batches
from headrace.scan.errors import DataLossError, OptionError
from headrace.scan.export.files import files_of
from headrace.scan.export.state import ExportState, load_state, save_state
from headrace.scan.export.values import infer_schema, schema_of, schema_text, with_values
from headrace.scan.offsets import special_offsets
from headrace.scan.options import COLUMNS, HEADERS, READ_PIN_MS
from headrace.scan.partitions import ScanPartition, Subscribe, TopicCatalog, select
from headrace.scan.plan import WantedOffsets, pin, plan
from headrace.scan.read import SplitReader
from headrace.storage.objects.store import ObjectStore

CHUNK_BYTES = 64 * 1024 * 1024
Report = Callable[[int, int], None]
"""Called with (offsets done, offsets in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """`fail_on_data_loss`: retention that overtakes the export is an error. `chunk_bytes`: stored bytes per chunk."""

    topic: str
    infer_json: bool = False
    fail_on_data_loss: bool = True
    committed: bool = True
    """Isolation: read_committed."""
    chunk_bytes: int = CHUNK_BYTES


class Exporter:
    """One export; call `run`."""

    def __init__(
        self, cluster: ScannedCluster, reader: SplitReader, target: ObjectStore, options: ExportOptions, report: Report
    ) -> None:
        self._cluster, self._reader, self._target = cluster, reader, target
        self._options, self._report = options, report

    async def run(self) -> int:
        """The number of rows written now. OptionError, DataLossError, UnreadableFileError: what was finished stays."""
        metastore = self._cluster.metastore
        partitions = select(Subscribe((self._options.topic,)), await TopicCatalog(metastore).refresh())
        fresh = ExportState(metastore.cluster_id, self._options.topic, partitions[0].topic_id)
        self._state = await load_state(self._target, fresh)
        if self._state.done and self._options.infer_json != (self._state.value_schema is not None):
            raise OptionError("the target's values have another form: JSON is inferred in all runs, or in none")
        committed = self._options.committed
        earliest, latest = [
            await special_offsets(metastore, dict.fromkeys(partitions, int(kind)), committed=committed)
            for kind in (OffsetKind.EARLIEST, OffsetKind.LATEST)
        ]
        starts = {p: self._state.done.get(p.partition, earliest[p]) for p in partitions}
        total, done, rows = sum(max(0, latest[p] - starts[p]) for p in partitions), 0, 0
        for partition in partitions:
            start = starts[partition]
            while start < latest[partition]:
                end = await self._end_of_chunk(partition, start, latest[partition])
                rows += await self._chunk(partition, WantedOffsets(start, end))
                done += end - start
                start = end
                self._report(done, total)
        return rows

    async def _end_of_chunk(self, partition: ScanPartition, start: int, latest: int) -> int:
        """Of a chunk that a former run began, else as far as about `chunk_bytes` reach."""
        begun = self._state.writing.get(partition.partition)
        if begun is not None:
            return begun
        end = await chunk_end(self._cluster.metastore, partition, start, self._options.chunk_bytes)
        return min(end, latest)

    async def _chunk(self, partition: ScanPartition, wanted: WantedOffsets) -> int:
        index = partition.partition
        self._state.done.setdefault(index, wanted.start)
        self._state.begin(index, wanted.end)
        await save_state(self._target, self._state)
        pinned = await pin(self._cluster.metastore, "export", READ_PIN_MS)
        try:
            planned = await plan(
                self._cluster.metastore,
                {partition: wanted},
                fail_on_data_loss=self._options.fail_on_data_loss,
                committed=self._options.committed,
            )
            schema = arrow_schema((*COLUMNS, HEADERS))
            batches = await asyncio.to_thread(
                lambda: list(record_batches(self._reader.batches(tuple(planned)), schema))
            )
        finally:
            await self._cluster.metastore.release_pins([pinned])
        rows = pa.Table.from_batches(batches, schema)
        if self._options.infer_json and rows.num_rows:
            rows = await asyncio.to_thread(self._typed, rows)
        for key, body in files_of(rows, partition.topic, index, *wanted):
            await self._target.put(key, body)
        self._state.finish(index)
        await save_state(self._target, self._state)
        return int(rows.num_rows)

    def _typed(self, rows: pa.Table) -> pa.Table:
        """With JSON values as structs; the first chunk decides the schema."""
        if self._state.value_schema is None:
            self._state.value_schema = schema_text(infer_schema(rows))
        return with_values(rows, schema_of(self._state.value_schema))


async def chunk_end(metastore: ReadApi, partition: ScanPartition, start: int, chunk_bytes: int) -> int:
    """The offset after the extents that hold about `chunk_bytes` from `start` on."""
    (answer,) = await metastore.find_extents([ExtentQuery(partition.key, start, chunk_bytes)])
    if not answer.extents:
        raise DataLossError(f"offsets are not in the log: partition={partition} offset={start}")
    return answer.extents[-1].last_offset + 1
