"""Writing topics: tasks store segment files, the driver commits those that Spark reports.

    driver     TopicWriter / TopicStreamWriter are made    options and schema checked, topics and their rules read
    executors  write     rows -> segment files, reported as StoredFiles
    driver     commit    one bulk write: by a stream's query id and batch id, or by a batch's writeId

Place: made by source.py; Spark pickles them to its Python workers. PySpark makes a stream's writer again for a commit.
Invariant: as scan/bulk/commit.py: a micro-batch, or a batch write with a writeId, is in the topics once, whichever
driver or attempt runs it. Nothing is in the topics before the commit; files that are not committed are orphans.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.config.settings import Settings
from headrace.metastore.api.bulk import BulkFile
from headrace.scan.bootstrap import cluster_settings
from headrace.scan.bulk.commit import BulkCommit, BulkWrite
from headrace.scan.bulk.options import parse_write_options
from headrace.scan.bulk.task import BulkTask, TaskPlan
from headrace.scan.bulk.topics import writable_topics
from headrace.scan.cluster import BucketAddress, open_cluster
from headrace.scan.errors import OptionError
from headrace.scan.partitions import TopicCatalog
from headrace.spark.rows import check_schema, chunks
from headrace.storage.clock import SystemClock
from headrace.storage.collector_tuning import tune_collector

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # before PySpark 4.1: the same with Spark's rows
        from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter

logger = logging.getLogger(__name__)

_QUERY_ID = "sql.streaming.queryId"
"""The property of Spark's tasks that names their streaming query; stored in its checkpoint."""


@dataclass(frozen=True)
class StoredFiles(WriterCommitMessage):
    """The result of one task."""

    files: Sequence[BulkFile]
    query_id: str | None


class _Writer:
    """What batches and streams have in common."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool) -> None:
        self._options = options
        self._write = parse_write_options(options, streaming=streaming)
        if overwrite:
            raise OptionError('records are appended to topics: use mode("append"), or outputMode append or update')
        check_schema(schema, has_topic=self._write.topic is not None)
        self._schema = schema
        settings = cluster_settings(options, os.environ)
        self._bucket = BucketAddress.of(settings)
        self._plan = asyncio.run(self._make_plan(settings))

    async def _make_plan(self, settings: Settings) -> TaskPlan:
        async with open_cluster(settings) as cluster:
            image = await TopicCatalog(cluster.metastore.cluster).refresh()
            return TaskPlan(
                topics=writable_topics(image, settings, None if self._write.topic is None else [self._write.topic]),
                topic=self._write.topic,
                codec=self._write.codec,
                file_bytes=self._write.file_bytes,
                term_hours=self._write.term_hours,
                driver_ahead_ms=await cluster.metastore.commits.database_ms() - cluster.clock.wall_ms(),
            )

    def store(self, iterator: Iterator[Any]) -> StoredFiles:
        """A task's rows."""
        tune_collector()
        clock, rng = SystemClock(), random.Random()
        task = BulkTask(self._bucket.open(clock, rng), self._plan, clock, rng)
        try:
            for rows in chunks(iterator, self._schema):
                task.add(rows)
            files = task.finish()
        finally:
            task.close()
        context = TaskContext.get()
        return StoredFiles(files, None if context is None else context.getLocalProperty(_QUERY_ID))

    async def commit_files(
        self, writer: str, batch_id: int, messages: Sequence[WriterCommitMessage | None], *, is_named: bool = False
    ) -> None:
        """Once."""
        files = [file for message in messages if isinstance(message, StoredFiles) for file in message.files]
        async with open_cluster(cluster_settings(self._options, os.environ)) as cluster:
            write = BulkWrite(writer, batch_id, tuple(self._plan.topics.values()), is_named)
            commit = BulkCommit(
                cluster.metastore,
                write,
                cluster.clock,
                cluster.rng,
                bucket=cluster.store,
                life=cluster.life,
            )
            if not await commit.commit(files):
                logger.warning(
                    "written by an earlier attempt: writer=%s batch_id=%d files=%d", writer, batch_id, len(files)
                )


class TopicWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._writer = _Writer(options, schema, overwrite=overwrite, streaming=False)
        write_id = parse_write_options(options, streaming=False).write_id
        self._name = f"job/{uuid.uuid4()}" if write_id is None else f"write/{write_id}"
        self._is_named = write_id is not None

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._writer.store(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        asyncio.run(self._writer.commit_files(self._name, 0, messages, is_named=self._is_named))


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """The micro-batches of a query."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._writer = _Writer(options, schema, overwrite=overwrite, streaming=True)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._writer.store(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        query_ids = {message.query_id for message in messages if isinstance(message, StoredFiles)}
        if not query_ids:  # no tasks, so no rows
            return
        (query_id,) = query_ids
        if query_id is None:
            raise OptionError(f"Spark did not name the query to its tasks: property={_QUERY_ID}")
        asyncio.run(self._writer.commit_files(f"query/{query_id}", batchId, messages))
