"""Exports the records of one topic, chunk by chunk.

    with JSON values, once: their schema is inferred
    for each partition, while offsets are left:
        state: this chunk is being written  ->  pin  ->  plan  ->  rows  ->  files per date  ->  state: it is done

Place: under `headrace export`; the target is any object store (a directory or a bucket).
Invariant: as state.py: after a crash at any step a rerun leaves each offset in exactly one file. One export per target
at a time. Log ends (with `committed` last stable offsets) are fixed at the beginning, so an export ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from headrace.metastore.api.read import ExtentQuery, OffsetKind, ReadApi
from headrace.scan.cluster import ScannedCluster
from headrace.scan.columns import arrow_schema, record_batches
from headrace.scan.errors import OptionError
from headrace.scan.export.files import files_of
from headrace.scan.export.state import ExportState, load_state, save_state
from headrace.scan.export.values import infer_schema, schema_of, schema_text, with_values
from headrace.scan.offsets import special_offsets
from headrace.scan.options import COLUMNS, HEADERS, READ_PIN_MS
from headrace.scan.partitions import ScanPartition, Subscribe, TopicCatalog, select
from headrace.scan.plan import WantedOffsets, pin, plan
from headrace.scan.read import SplitReader
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)
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
        if self._state.done and self._options.infer_json != self._state.has_json:
            raise OptionError("the target's values have another form: JSON is inferred in all runs, or in none")
        self._state.infer_json = self._options.infer_json
        committed = self._options.committed
        earliest, latest = [
            await special_offsets(metastore, dict.fromkeys(partitions, int(kind)), committed=committed)
            for kind in (OffsetKind.EARLIEST, OffsetKind.LATEST)
        ]
        starts = {p: self._state.done.get(p.partition, earliest[p]) for p in partitions}
        wanted = {p: WantedOffsets(starts[p], latest[p]) for p in partitions if starts[p] < latest[p]}
        if wanted and await self._lacks_schema(wanted):
            logger.warning("no value to infer a schema from yet, nothing is exported: topic=%s", self._options.topic)
            return 0
        return await self._export(wanted)

    async def _export(self, ranges: Mapping[ScanPartition, WantedOffsets]) -> int:
        total, done, rows = sum(end - start for start, end in ranges.values()), 0, 0
        for partition, (start, latest) in ranges.items():
            while start < latest:
                end = await self._end_of_chunk(partition, start, latest)
                rows += await self._chunk(partition, WantedOffsets(start, end))
                done += end - start
                start = end
                self._report(done, total)
        return rows

    async def _end_of_chunk(self, partition: ScanPartition, start: int, latest: int) -> int:
        """Return the end of a chunk that a former run began, else as far as about `chunk_bytes` reach."""
        begun = self._state.writing.get(partition.partition)
        if begun is not None:
            return begun
        return await chunk_end(
            self._cluster.metastore, partition, WantedOffsets(start, latest), self._options.chunk_bytes
        )

    async def _lacks_schema(self, ranges: Mapping[ScanPartition, WantedOffsets]) -> bool:
        """Return whether JSON values have no schema yet; infers it from the first chunk that has a field."""
        if not self._options.infer_json or self._state.value_schema is not None:
            return False
        for partition, (start, latest) in ranges.items():
            while start < latest:
                end = await self._end_of_chunk(partition, start, latest)
                schema = await asyncio.to_thread(infer_schema, await self._rows(partition, WantedOffsets(start, end)))
                if schema is not None:
                    self._state.value_schema = schema_text(schema)
                    return False
                start = end
        return True

    async def _chunk(self, partition: ScanPartition, wanted: WantedOffsets) -> int:
        index = partition.partition
        self._state.done.setdefault(index, wanted.start)
        self._state.begin(index, wanted.end)
        await save_state(self._target, self._state)
        rows = await self._rows(partition, wanted)
        if self._state.value_schema is not None:
            rows = await asyncio.to_thread(with_values, rows, schema_of(self._state.value_schema))
        for key, body in files_of(rows, partition.topic, index, *wanted):
            await self._target.put(key, body)
        self._state.finish(index)
        await save_state(self._target, self._state)
        return int(rows.num_rows)

    async def _rows(self, partition: ScanPartition, wanted: WantedOffsets) -> pa.Table:
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
        return pa.Table.from_batches(batches, schema)


async def chunk_end(metastore: ReadApi, partition: ScanPartition, wanted: WantedOffsets, chunk_bytes: int) -> int:
    """The offset after the extents that hold about `chunk_bytes` from the start of the range on, at most its end.

    Its end if the log has nothing there: the plan says what of that is lost.
    """
    (answer,) = await metastore.find_extents([ExtentQuery(partition.key, wanted.start, chunk_bytes)])
    return min([wanted.end, *(extent.last_offset + 1 for extent in answer.extents[-1:])])
