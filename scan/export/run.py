"""Exports the records of one topic, chunk by chunk.

    with JSON values, once: their schema is inferred
    for each partition, while offsets are left:
        state: this chunk is being written  ->  pin  ->  plan  ->  rows  ->  files per date  ->  state: it is done

Place: under `headrace export`; the target is any object store (a directory or a bucket).
Invariant: after a crash at any step a rerun leaves each offset in exactly one file. `done` of the state is the offset
below which all records of a partition are in files of the target. While `writing` has a partition, the files of its
chunk [done, writing) may be there, complete or not: the next run writes exactly that again, under the same names, which
depend only on the chunk: date=2026-11-22/orders-3-000000000000120000-000000000000129999.parquet. An object is stored
completely or not at all. One export per target at a time. Log ends (with `committed` last stable offsets) are fixed at
the beginning, so an export ends.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyarrow import compute, parquet

from headrace.metastore.api.read import ExtentQuery, IndexApi, OffsetKind
from headrace.scan.cluster import ScannedCluster
from headrace.scan.columns import arrow_schema, record_batches
from headrace.scan.errors import OptionError
from headrace.scan.export.values import infer_schema, schema_of, schema_text, with_values
from headrace.scan.offsets import special_offsets
from headrace.scan.options import COLUMNS, HEADERS, READ_PIN_MS
from headrace.scan.partitions import ScanPartition, Subscribe, TopicCatalog, select
from headrace.scan.plan import WantedOffsets, pin, plan_in_bucket
from headrace.scan.read import SplitReader
from headrace.storage.errors import NotFoundError
from headrace.storage.objects.agreed import read_agreed
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)
CHUNK_BYTES = 64 * 1024 * 1024
Report = Callable[[int, int], None]
"""Called with (offsets done, offsets in all)."""
DATE = "date"
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
"""Folder of times outside of the years 1 to 9999: readers take the folder's date for null."""
_MICROSECONDS = pa.timestamp("us", tz="UTC")
_FIRST = pa.scalar(-62_135_596_800_000_000, _MICROSECONDS)
_AFTER = pa.scalar(253_402_300_800_000_000, _MICROSECONDS)
COMPRESSION = "zstd"
STATE_KEY = "_headrace/state.json"
VERSION = 2
"""2: `infer_json`, and columns of JSON text. A target of version 1 stays one."""


class ExportState(msgspec.Struct):
    """Stored as JSON; partitions by index."""

    cluster_id: str
    topic: str
    topic_id: uuid.UUID
    done: dict[int, int] = {}
    writing: dict[int, int] = {}
    value_schema: str | None = None
    """The schema of JSON values: an Arrow schema, in base64."""
    version: int = VERSION
    infer_json: bool | None = None
    """Whether values are JSON; None in version 1, where only the schema says so."""

    @property
    def has_json(self) -> bool:
        """Whether the values of the target's files are JSON."""
        return self.value_schema is not None if self.infer_json is None else self.infer_json

    def begin(self, partition: int, end: int) -> None:
        """A chunk up to `end` is about to be written."""
        self.writing[partition] = end

    def finish(self, partition: int) -> None:
        """The chunk's files are stored."""
        self.done[partition] = self.writing.pop(partition)


async def load_state(store: ObjectStore, fresh: ExportState) -> ExportState:
    """The target's state, or `fresh`. OptionError if the target is of another topic or cluster."""
    try:
        found = msgspec.json.decode(await read_agreed(store, STATE_KEY), type=ExportState)
    except NotFoundError:
        return fresh
    except msgspec.DecodeError as error:
        raise OptionError(f"{STATE_KEY} of the target is not an export's state: {error}") from error
    if found.version not in (1, VERSION):
        raise OptionError(f"the target was written by another version: version={found.version} known={VERSION}")
    for name in ("cluster_id", "topic", "topic_id"):
        if getattr(found, name) != getattr(fresh, name):
            raise OptionError(
                f"the target has an export of another {name.replace('_', ' ')}: {getattr(found, name)},"
                f" not {getattr(fresh, name)}: choose another --to"
            )
    return found


async def save_state(store: ObjectStore, state: ExportState) -> None:
    """Replace the state."""
    await store.put(STATE_KEY, msgspec.json.encode(state))


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
        partitions = select(Subscribe((self._options.topic,)), await TopicCatalog(metastore.cluster).refresh())
        fresh = ExportState(metastore.cluster_id, self._options.topic, partitions[0].topic_id)
        self._state = await load_state(self._target, fresh)
        if self._state.done and self._options.infer_json != self._state.has_json:
            raise OptionError("the target's values have another form: JSON is inferred in all runs, or in none")
        self._state.infer_json = self._options.infer_json
        committed = self._options.committed
        earliest, latest = [
            await special_offsets(metastore.index, dict.fromkeys(partitions, int(kind)), committed=committed)
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
            self._cluster.metastore.index, partition, WantedOffsets(start, latest), self._options.chunk_bytes
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
        pinned = await pin(self._cluster.metastore.jobs, "export", READ_PIN_MS)
        try:
            planned = await plan_in_bucket(
                self._cluster.metastore,
                self._cluster.clock,
                {partition: wanted},
                fail_on_data_loss=self._options.fail_on_data_loss,
                committed=self._options.committed,
            )
            schema = arrow_schema((*COLUMNS, HEADERS))
            batches = await asyncio.to_thread(
                lambda: list(record_batches(self._reader.batches(tuple(planned)), schema))
            )
        finally:
            await self._cluster.metastore.jobs.release_pins([pinned])
        return pa.Table.from_batches(batches, schema)


async def chunk_end(metastore: IndexApi, partition: ScanPartition, wanted: WantedOffsets, chunk_bytes: int) -> int:
    """The offset after the extents that hold about `chunk_bytes` from the start of the range on, at most its end.

    Its end if the log has nothing there: the plan says what of that is lost.
    """
    (answer,) = await metastore.find_extents([ExtentQuery(partition.key, wanted.start, chunk_bytes)])
    return min([wanted.end, *(extent.last_offset + 1 for extent in answer.extents[-1:])])


def files_of(rows: pa.Table, topic: str, partition: int, start: int, end: int) -> Iterator[tuple[str, bytes]]:
    """(key, bytes) of each file for the offsets [start, end); the date is that of the record's timestamp in UTC."""
    times = rows.column("timestamp")
    has_date = compute.and_(compute.greater_equal(times, _FIRST), compute.less(times, _AFTER))
    dates = compute.if_else(has_date, compute.strftime(times, format="%Y-%m-%d"), NO_DATE)
    for date in sorted(compute.unique(dates).to_pylist()):
        sink = pa.BufferOutputStream()
        parquet.write_table(rows.filter(compute.equal(dates, date)), sink, compression=COMPRESSION)
        name = f"{topic}-{partition}-{start:018}-{end - 1:018}.parquet"
        yield f"{DATE}={date}/{name}", sink.getvalue().to_pybytes()
