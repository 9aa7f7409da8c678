"""Keeps a table as tables/worker.py does, but for one step: the files of a large chunk are written by tasks. It
also keeps tables with a row per key, which the local worker leaves to it (merging.py).

    look, step, pin, plan                       the driver, as without Spark
    splits -> tasks.py -> data files            executors
    one commit with these files                 the driver, by the same appending.py

Place: used by application.py. Spark's job runs on a thread.
Invariant: the commit path is that of the local worker, so both may keep one table, in turn or at once. A driver that is
killed leaves files without a snapshot, and no row.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from headrace.scan.cluster import BucketAddress
from headrace.scan.splits import Split, make_splits
from headrace.spark.short_errors import errors_of_tasks
from headrace.spark.tables.merging import KeyMerge
from headrace.spark.tables.tasks import AppendTask, TaskDone, write_split
from headrace.tables.commit.data_files import DataFilePlace
from headrace.tables.log.chunks import ChunkReader
from headrace.tables.log.policy import AppendStep
from headrace.tables.looking import TableLook
from headrace.tables.state import TableProgress
from headrace.tables.values.open import DEAD_RANGES_MAX
from headrace.tables.worker import Made, TableRound, TableWorker

logger = logging.getLogger(__name__)

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
