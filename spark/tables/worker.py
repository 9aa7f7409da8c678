"""Keeps a table as tables/worker.py does, but tasks write the files of a large chunk or of a merge by key.

Place: used by application.py. Spark's job runs on a thread. The local worker leaves tables with a row per key to it.

    look, step, key order, pin, plan            the driver
    splits -> tasks.py -> data files            executors; the driver itself for what is small
    one commit                                  the driver, by the same tables/commit/appending.py

Invariant of a merge: the commit is bound to the snapshot that the files were merged with, and has the offsets. A
driver that is killed, or loses the commit, leaves files without a snapshot, and no row is changed. Nothing is
committed unless each split was opened once, and all of its changes were merged.
Invariant: the commit path is that of the local worker, so both may keep one table, in turn or at once. A driver that
is killed leaves files without a snapshot, and no row.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.scan.cluster import BucketAddress
from headrace.scan.plan import PlannedPartition, Split, make_splits
from headrace.spark.short_errors import errors_of_tasks
from headrace.spark.tables.tasks import (
    AppendTask,
    GroupReport,
    GroupTask,
    SplitReport,
    SplitTask,
    TaskDone,
    blocks_of,
    write_split,
)
from headrace.storage.errors import UnavailableError
from headrace.tables.commit.data_files import DataFilePlace
from headrace.tables.keyed.key_order import in_key_order, waits_of
from headrace.tables.keyed.merging import KeyGroups, groups_of
from headrace.tables.keyed.opener import keyed_opener
from headrace.tables.layout import key_paths
from headrace.tables.log.chunks import ChunkReader, Reach, rows_of
from headrace.tables.log.policy import AppendStep
from headrace.tables.looking import Condition, TableLook
from headrace.tables.state import OffsetGap, TablePosition, TableProgress
from headrace.tables.values.open import DEAD_RANGES_MAX
from headrace.tables.worker import Made, TableRound, TableWorker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyMerge:
    """The step of one round of one table."""

    worker: SparkTableWorker
    name: str
    look: TableLook
    step: AppendStep
    progress: TableProgress

    async def advance(self) -> TableRound:
        """Make at most one commit. Errors as TableWorker.keep."""
        use, look = self.worker.use, self.look
        assert look.topic is not None, "a table that follows has a topic"
        cluster = self.worker.tables.cluster
        waits = await waits_of(cluster.metastore, look.topic)
        wanted = in_key_order(self.step.wanted, self.progress.positions, waits)
        if not wanted and not self.step.gaps:
            return TableRound(Condition.FOLLOWING, "partitions wait for the ends of others", lag=look.lag)
        step = replace(self.step, wanted=wanted)
        groups = await asyncio.to_thread(groups_of, look.table, key_paths(look.definition))
        chunks = ChunkReader(cluster, self.worker.reader, use.split_bytes * use.chunk_splits)
        async with chunks.planned(step, look.partitions) as (reach, planned):
            splits = make_splits(planned, use.split_bytes, None)
            made = await self._by_spark(splits, groups) if len(splits) > 1 else None
            if made is not None:
                return await self._commit({partition: each.position for partition, each in reach.items()}, made)
        chunks = ChunkReader(cluster, self.worker.reader, self.worker.chunk_bytes)
        async with chunks.planned(step, look.partitions) as (reach, planned):
            return await self._by_the_driver(step, reach, planned, groups)

    async def _commit(self, reached: Mapping[int, TablePosition], made: Made) -> TableRound:
        return await self.worker._commit(self.name, self.look, self.step, self.progress, reached, made)

    async def _by_spark(self, splits: Sequence[Split], groups: KeyGroups) -> Made | None:
        """Return None if the driver has to decide about records. UnavailableError: a task failed."""
        use, look = self.worker.use, self.look
        place = DataFilePlace.of(look.table)
        open_split = SplitTask(AppendTask(place, look.definition, use.registry_url, use.bucket), groups.buckets)
        merge = GroupTask(place, look.definition, groups)
        done = await asyncio.to_thread(self._run, open_split, merge, splits, groups.buckets)
        reports = [each for each in done if isinstance(each, SplitReport)]
        merged = [each for each in done if isinstance(each, GroupReport)]
        dead = tuple(sorted((gap for each in reports for gap in each.dead), key=lambda gap: (gap.partition, gap.start)))
        if all(each.is_plain for each in reports) and len(dead) <= DEAD_RANGES_MAX:
            problem = why_incomplete(len(splits), reports, merged)
            if problem:
                await self._delete(merged)
                raise UnavailableError(f"a merge on Spark is to be repeated: {problem}")
            logger.info(
                "merged by spark: table=%s tasks=%d groups=%d put=%d gone=%d",
                self.name,
                len(splits),
                len(merged),
                sum(each.merged.put for each in merged),
                sum(each.merged.gone for each in merged),
            )
            return _made(merged, dead)
        logger.info("the driver decides about records of this chunk: table=%s tasks=%d", self.name, len(splits))
        await self._delete(merged)
        return None

    def _run(
        self, open_split: SplitTask, merge: GroupTask, splits: Sequence[Split], groups: int
    ) -> list[SplitReport | GroupReport]:
        numbered = list(enumerate(splits))
        with errors_of_tasks():
            context = self.worker.use.open().sparkContext
            opened = context.parallelize(numbered, len(numbered)).flatMap(open_split)
            return opened.groupByKey(groups + 1).flatMap(merge).collect()

    async def _by_the_driver(
        self, step: AppendStep, reach: Mapping[int, Reach], planned: Sequence[PlannedPartition], groups: KeyGroups
    ) -> TableRound:
        """Open a small chunk here: also for new columns, and where a record has to wait."""
        name, look, worker = self.name, self.look, self.worker
        raw = await asyncio.to_thread(rows_of, worker.reader, planned)
        opener = keyed_opener(look.definition, look.table.schema(), worker.formats)
        opened = await asyncio.to_thread(opener.open, raw)
        keys = key_paths(look.definition) if look.definition.has_column_key else ()
        reached = await worker._reached(name, look, step, reach, opener.columns, opened, keys)
        if isinstance(reached, TableRound):
            return reached
        merged = await asyncio.to_thread(self._merged, opened.changes, groups)
        return await self._commit(reached, _made(merged, opened.dead))

    def _merged(self, changes: pa.Table, groups: KeyGroups) -> list[GroupReport]:
        """Merge into the groups: those of a large table on Spark."""
        look, use = self.look, self.worker.use
        merge = GroupTask(DataFilePlace.of(look.table), look.definition, groups)
        blocks = blocks_of(look.definition, look.table.metadata, changes, groups.buckets, 0)
        grouped = [(block.group, [(block, data)]) for block, data in blocks]
        if grouped and groups.stored_bytes > use.split_bytes:
            with errors_of_tasks():
                found = use.open().sparkContext.parallelize(grouped, len(grouped)).flatMap(merge).collect()
        else:
            found = [report for each in grouped for report in merge(each)]
        return [each for each in found if isinstance(each, GroupReport)]

    async def _delete(self, merged: Sequence[GroupReport]) -> None:
        """Delete files that no commit will have."""
        for each in merged:
            for file in each.merged.files:
                await asyncio.to_thread(self.look.table.io.delete, file.file_path)


def why_incomplete(splits: int, reports: Sequence[SplitReport], merged: Sequence[GroupReport]) -> str:
    """Return why what tasks did is not one merge of each split; empty: it is."""
    named = [block for each in reports for block in each.blocks]
    read = [block for each in merged for block in each.blocks]
    if len(reports) != splits:
        return f"splits={splits} reports={len(reports)}"
    if sorted(named) != sorted(read):
        return f"groups read other blocks than splits have: blocks={len(named)} read={len(read)}"
    return ""


def _made(merged: Sequence[GroupReport], dead: tuple[OffsetGap, ...]) -> Made:
    files = tuple(file for each in merged for file in each.merged.files)
    removed = tuple(file for each in merged for file in each.merged.removed)
    return Made(sum(each.merged.put for each in merged), dead, files=files, removed=removed)


SPLIT_BYTES = 64 * 1024 * 1024
"""Stored bytes that one task reads; a smaller chunk is appended by the driver."""


@dataclass(slots=True, kw_only=True)
class SparkTables:
    """How Spark is used. `open`: called when the first chunk is large enough."""

    open: Callable[[], SparkSession]
    bucket: BucketAddress
    registry_url: str = ""
    split_bytes: int = SPLIT_BYTES
    chunk_splits: int = 16
    """Splits that one commit appends."""


@dataclass(slots=True)
class SparkTableWorker(TableWorker):
    """A worker that has its large chunks written by Spark."""

    spark: SparkTables | None = None
    merges_keys: bool = True

    @property
    def use(self) -> SparkTables:
        """How Spark is used."""
        assert self.spark is not None, "made without Spark"
        return self.spark

    async def _advance(self, name: str, look: TableLook, step: AppendStep, progress: TableProgress) -> TableRound:
        use = self.use
        if look.definition.is_keyed:
            return await KeyMerge(self, name, look, step, progress).advance()
        chunks = ChunkReader(self.tables.cluster, self.reader, use.split_bytes * use.chunk_splits)
        async with chunks.planned(step, look.partitions) as (reach, planned):
            splits = make_splits(planned, use.split_bytes, None)
            done = await self._written(name, look, splits) if len(splits) > 1 else None
            if done is not None:
                reached = {partition: each.position for partition, each in reach.items()}
                return await self._commit(name, look, step, progress, reached, done)
        return await TableWorker._advance(self, name, look, step, progress)

    async def _written(self, name: str, look: TableLook, splits: Sequence[Split]) -> Made | None:
        """Let tasks write the splits; None if the driver has to decide. UnavailableError: a task failed."""
        use = self.use
        task = AppendTask(DataFilePlace.of(look.table), look.definition, use.registry_url, use.bucket)
        done = await asyncio.to_thread(_run, use.open(), task, splits)
        dead = tuple(gap for each in done for gap in each.dead)
        files = tuple(file for each in done for file in each.files)
        if all(each.is_plain for each in done) and len(dead) <= DEAD_RANGES_MAX:
            logger.info("written by spark: table=%s tasks=%d files=%d", name, len(done), len(files))
            return Made(sum(each.rows for each in done), dead, files=files)
        logger.info("the driver decides about records of this chunk: table=%s tasks=%d", name, len(done))
        for each in files:
            await asyncio.to_thread(look.table.io.delete, each.file_path)
        return None


def _run(spark: SparkSession, task: AppendTask, splits: Sequence[Split]) -> list[TaskDone]:
    """One task for each split; what they say, in the order of the splits."""
    with errors_of_tasks():
        tasks = spark.sparkContext.parallelize(list(splits), len(splits))
        return tasks.map(lambda split: write_split(task, split)).collect()
