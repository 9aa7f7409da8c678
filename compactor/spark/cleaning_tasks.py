"""What executors do in a pass over one partition on Spark: they read keys, and later write extents again.

    ScanTask     a part of the extents   one row per record with a key: digest, offset; and one row for the part itself
    (Spark)      shuffles by digest      finds the records that a later one of the dirty part supersedes
    (Spark)      shuffles by part        brings their offsets to the part, in order
    RewriteTask  a part, its offsets     writes what the local worker would write, stores it, reports it

Place: in Spark's Python workers; cleaning.py makes the two shuffles and takes the reports.
Invariant: the same decisions as in the local worker, by the same code (cleaning/rewrite.py); only "a later record has
this key" comes from Spark instead of a key map. Files are live only after the driver's swap, so a task that is
repeated, or a driver that ended, leaves objects under reserved ids for the cleanup. If an extent cannot be read, no
part is written again; if each read of it was altered on its way, the task fails, and Spark repeats it. Memory of a
task: an extent, the offsets that its part loses, one output file. Digests are keyed with a secret of the pass, as in
key_map.py; clients cannot make two keys with one digest.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import numpy
import pyarrow
from numpy.typing import NDArray

from headrace.compactor.cleaning.job import not_of_the_partition, sources_of
from headrace.compactor.cleaning.key_map import DIGEST_BYTES, Offsets, joined_digests
from headrace.compactor.cleaning.passes import Output, Pass, UncleanableError, uncleanable_for
from headrace.compactor.cleaning.rewrite import CleaningPass, EndedTransactions, JudgedBatch, judge, keyed_records
from headrace.compactor.merge import GrowingFile, MergedFile, MergeLimits
from headrace.compactor.plan import PartitionPlan
from headrace.compactor.planner import LAST_LEVEL
from headrace.compactor.sources import UNREADABLE, UNREADABLE_AT_LAST, Sources
from headrace.compactor.spark.reserved import PartIds, store_reserved
from headrace.compactor.spark.store import throttled_store
from headrace.compactor.take_over import store_merged
from headrace.metastore.api.compaction import DamagedExtent, NewFile, Swap, SwapInput
from headrace.metastore.api.read import AbortedRange, DataExtent, is_in_file
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.collector_tuning import tune_collector
from headrace.storage.errors import HeadraceError, UnavailableError
from headrace.storage.file_id import new_file_id
from headrace.storage.objects.store import ObjectStore
from headrace.storage.segment.rereading import VerifiedReads

SCAN_SCHEMA = "part int, digest binary, offset bigint, is_dirty boolean, why string"
REPORT_SCHEMA = "report binary"
PART_ROW, UNREADABLE_ROW = -1, -2
"""Instead of an offset: the row that each part has, and one that says why nothing of the partition is written."""


class PassPlan(msgspec.Struct, frozen=True):
    """A pass over one partition, for its tasks. Times in ms; `began_ms` on the database's clock, `driver_ms` the
    driver's clock at that moment.
    """

    parts: tuple[PartitionPlan, ...]
    """Consecutive extents each."""
    cleaned_offset: int
    end: int
    kept_offset: int
    began_ms: int
    driver_ms: int
    delete_retention_ms: int
    is_patient: bool
    file_bytes: int
    max_message_bytes: int
    bytes_per_s: float
    requests_per_s: float
    file_ids: tuple[PartIds, ...]
    """The ids of files by part."""
    aborted: tuple[AbortedRange, ...] = ()
    log_start_offset: int = 0
    bucket_id: str = ""
    """The id of the driver's bucket."""

    @property
    def ended(self) -> EndedTransactions:
        """How transactions ended in the partition."""
        return EndedTransactions(self.aborted, self.log_start_offset)

    @property
    def unreadable(self) -> tuple[type[HeadraceError], ...]:
        """Errors of the store that are about the partition."""
        return UNREADABLE if self.is_patient else UNREADABLE_AT_LAST

    @property
    def limits(self) -> MergeLimits:
        """Limits of the files."""
        return MergeLimits(file_bytes=self.file_bytes, max_message_bytes=self.max_message_bytes)


class Uncleanable(msgspec.Struct, frozen=True):
    """Why nothing of the partition is written, and the extent that is the reason, in a row of ScanTask as JSON."""

    why: str
    damaged: DamagedExtent | None


class PartReport(msgspec.Struct):
    """What became of a part. `files`: (file, its swaps), stored and not swapped in."""

    number: int
    files: list[tuple[NewFile, list[list[Swap]]]] = []
    left: list[SwapInput] = []
    horizon_ms: int | None = None
    why: str | None = None
    """The reason why the partition cannot be cleaned."""
    damaged: DamagedExtent | None = None
    """The extent that is the reason."""
    superseded: int = 0
    keyless: int = 0
    expired: int = 0
    aborted: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def judged(self, batch: JudgedBatch) -> None:
        """Count what a batch loses."""
        self.superseded += batch.superseded
        self.keyless += batch.keyless
        self.expired += batch.expired
        self.aborted += batch.aborted


@dataclass(frozen=True)
class SupersededOffsets:
    """A rewrite.LaterRecords: offsets in order, of the records of a part that a later one supersedes."""

    offsets: Offsets

    def are_superseded(self, keys: Iterable[bytes], offsets: Sequence[int]) -> NDArray[numpy.bool_]:
        """Keys were compared by Spark."""
        return numpy.isin(numpy.array(offsets, numpy.int64), self.offsets)


@dataclass
class _PassTask:
    """A function for mapInArrow: sent to executors, called there once per task."""

    plan: bytes
    """PassPlan, as JSON."""
    opened: PassPlan = field(init=False, repr=False)
    ended: EndedTransactions = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.opened = msgspec.json.decode(self.plan, type=PassPlan)
        self.ended = self.opened.ended

    @asynccontextmanager
    async def _store(self, clock: Clock, rng: random.Random) -> AsyncIterator[ObjectStore]:
        plan = self.opened
        async with throttled_store(
            clock, rng, plan.bucket_id, bytes_per_s=plan.bytes_per_s, requests_per_s=plan.requests_per_s
        ) as store:
            yield store


@dataclass
class ScanTask(_PassTask):
    """Rows of the parts with the numbers it gets."""

    secret: bytes

    def __call__(self, numbers: Iterator[Any]) -> Iterator[Any]:
        tune_collector()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self.rows(number)

    def rows(self, number: int) -> Iterator[Any]:
        """Yield the rows of one part, extent by extent."""
        yield _row(number, PART_ROW, None)
        with asyncio.Runner() as runner:
            extents = self._extents(number)

            async def following() -> Any:
                return await anext(extents, None)

            try:
                while (batch := runner.run(following())) is not None:
                    yield batch
            finally:
                runner.run(extents.aclose())

    async def _extents(self, number: int) -> AsyncGenerator[Any, None]:
        """Yield a batch of rows for each extent of part `number`. If an extent cannot be read, the whole partition is
        not cleaned: a row for every part says why, so that the tasks of all parts refuse.
        """
        plan = self.opened
        extents = plan.parts[number].extents
        async with self._store(SystemClock(), random.Random()) as store:
            sources = sources_of(VerifiedReads(store, SystemClock(), random.Random()), extents, plan.limits)
            try:
                for extent in filter(is_in_file, extents):
                    yield await self._keyed(number, sources, extent)
            except UncleanableError as error:
                found = msgspec.json.encode(Uncleanable(str(error), error.damaged)).decode()
                for part in range(len(plan.parts)):
                    yield _row(part, UNREADABLE_ROW, found)
            finally:
                await sources.close()

    async def _keyed(self, number: int, sources: Sources, extent: DataExtent) -> Any:
        with uncleanable_for(self.opened.unreadable, extent):
            batches = await sources.batches(extent)
        with uncleanable_for(UNREADABLE):
            keyed = [record for batch in batches for record in keyed_records(batch, self.ended)]
        offsets = numpy.array([offset for _, offset in keyed], numpy.int64)
        digests = joined_digests((key for key, _ in keyed), self.secret)
        return _rows(number, digests, offsets, offsets >= self.opened.cleaned_offset)


@dataclass
class RewriteTask(_PassTask):
    """Reports of the parts of which it gets rows (part, offset, why), in order."""

    def __call__(self, rows: Iterator[Any]) -> Iterator[Any]:
        tune_collector()
        for number, offsets, why in _by_part(rows):
            report = _refused(number, why) if why else asyncio.run(self.rewritten(number, offsets))
            yield _table({"report": pyarrow.array([msgspec.json.encode(report)], pyarrow.binary())})

    async def rewritten(self, number: int, superseded: Offsets) -> PartReport:
        """Write a part's extents again, as the local worker does."""
        clock, rng = SystemClock(), random.Random()
        plan, part, report = self.opened, self.opened.parts[number], PartReport(number)
        async with self._store(clock, rng) as store:

            async def keep(file: GrowingFile) -> None:
                merged = file.finish()
                with not_of_the_partition():
                    named = await self._stored(store, merged, number, len(report.files), clock, rng)
                report.files.append((named, merged.runs))
                report.written_bytes += merged.body_bytes

            cleaned = Pass(part, plan.cleaned_offset, plan.end)
            output = Output(keep, report.judged, plan.limits)
            output.begin(cleaned)
            sources = sources_of(VerifiedReads(store, clock, rng), part.extents, plan.limits)
            try:
                await self._rewrite(part, sources, SupersededOffsets(superseded), output, report)
            except UncleanableError as error:
                report.why, report.damaged = str(error), error.damaged
            finally:
                await sources.close()
            await output.store()
            report.left, report.horizon_ms = cleaned.left, cleaned.horizon_ms
        return report

    async def _stored(
        self, store: ObjectStore, file: MergedFile, part: int, number: int, clock: Clock, rng: random.Random
    ) -> NewFile:
        """Store a file under an id that the driver reserved; under a new one if files have no keys."""
        plan = self.opened
        ids = plan.file_ids[part]
        if not ids:
            born_ms = plan.began_ms + clock.wall_ms() - plan.driver_ms
            return await store_merged(store, file, file_id=new_file_id(born_ms, rng, LAST_LEVEL), level=LAST_LEVEL)
        if number == len(ids):
            raise UnavailableError(f"more files than reserved ids, the next attempt has more: part={part} ids={number}")
        return await store_reserved(store, file, ids[number], LAST_LEVEL)

    async def _rewrite(
        self, part: PartitionPlan, sources: Sources, later: SupersededOffsets, output: Output, report: PartReport
    ) -> None:
        plan = self.opened
        rule = CleaningPass(
            later,
            plan.cleaned_offset,
            plan.kept_offset,
            now_ms=plan.began_ms,
            horizon_ms=plan.began_ms + plan.delete_retention_ms,
            ended=self.ended,
        )
        for extent in part.extents:
            if not is_in_file(extent):
                await output.add_marker(extent, rule)
                continue
            with uncleanable_for(plan.unreadable, extent):
                batches = await sources.batches(extent)
            report.read_bytes += 2 * extent.length  # once for the keys
            with uncleanable_for(UNREADABLE):
                judged = judge(batches, rule)
            await output.add(extent, batches, judged)
        await output.close_run()


def _refused(number: int, why: str) -> PartReport:
    found = msgspec.json.decode(why, type=Uncleanable)
    return PartReport(number, why=found.why, damaged=found.damaged)


def _by_part(rows: Iterator[Any]) -> Iterator[tuple[int, Offsets, str | None]]:
    """(part, offsets, reason not to write it), from rows in the order of part and offset."""
    part, offsets, why = -1, list[Offsets](), None
    for batch in rows:
        parts, found = batch.column(0).to_numpy(zero_copy_only=False), batch.column(1).to_numpy(zero_copy_only=False)
        borders = [0, *(numpy.flatnonzero(parts[1:] != parts[:-1]) + 1).tolist(), len(parts)]
        for start, end in pairwise(borders):
            if start == end:
                continue
            if parts[start] != part:
                if part >= 0:
                    yield part, numpy.concatenate(offsets), why
                part, offsets, why = int(parts[start]), [], None
            if found[start] == UNREADABLE_ROW:
                why = batch.column(2)[start].as_py()
            mine = found[start:end]
            offsets.append(mine[mine >= 0].astype(numpy.int64))
    if part >= 0:
        yield part, numpy.concatenate(offsets), why


def _rows(number: int, digests: bytes, offsets: Offsets, are_dirty: NDArray[numpy.bool_]) -> Any:
    count = len(offsets)
    places = pyarrow.py_buffer(numpy.arange(0, (count + 1) * DIGEST_BYTES, DIGEST_BYTES, dtype=numpy.int32))
    return _table(
        {
            "part": pyarrow.array(numpy.full(count, number, numpy.int32)),
            "digest": pyarrow.Array.from_buffers(pyarrow.binary(), count, [None, places, pyarrow.py_buffer(digests)]),
            "offset": pyarrow.array(offsets),
            "is_dirty": pyarrow.array(are_dirty),
            "why": pyarrow.nulls(count, pyarrow.string()),
        }
    )


def _row(number: int, offset: int, why: str | None) -> Any:
    """A row without a key."""
    return _table(
        {
            "part": pyarrow.array([number], pyarrow.int32()),
            "digest": pyarrow.array([None], pyarrow.binary()),
            "offset": pyarrow.array([offset], pyarrow.int64()),
            "is_dirty": pyarrow.array([False]),
            "why": pyarrow.array([why], pyarrow.string()),
        }
    )


def _table(columns: dict[str, Any]) -> Any:
    return pyarrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
