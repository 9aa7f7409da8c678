"""Writing topics: tasks store segment files, the driver commits those that Spark reports.

Place: made by source.py; Spark pickles the writers to its Python workers. PySpark makes a stream's writer again for
a commit. Rows of a DataFrame become columns of a Kafka record: checked by schema on the driver, taken from Arrow or
from Spark's rows in tasks.
Invariant of rows: a column is taken by its name, as by Spark's Kafka sink; one that would be lost silently is
refused.

    driver     TopicWriter / TopicStreamWriter are made    options and schema checked, topics and their rules read
    executors  write     rows -> segment files, reported as StoredFiles
    driver     commit    one bulk write: by a stream's query id and batch id, or by a batch's writeId

Invariant: as scan/bulk/commit.py: a micro-batch, or a batch write with a writeId, is in the topics once, whichever
driver or attempt runs it. Nothing is in the topics before the commit; files that are not committed are orphans.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from headrace.config.settings import Settings
from headrace.metastore.api.commit import BulkFile
from headrace.scan.bulk.commit import BulkCommit, BulkWrite, writable_topics
from headrace.scan.bulk.options import parse_write_options
from headrace.scan.bulk.task import BulkTask, Rows, TaskPlan
from headrace.scan.cluster import BucketAddress, cluster_settings, open_cluster
from headrace.scan.errors import BulkWriteError, OptionError
from headrace.scan.partitions import TopicCatalog
from headrace.storage.clock import SystemClock
from headrace.storage.collector_tuning import tune_collector

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # before PySpark 4.1: the same with Spark's rows
        from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter

ROWS = 1_000
"""Number of Spark's rows at once."""
_IGNORED = ("offset", "timestamptype")
"""Columns of the source that are ignored: a topic that was read can be written as it is."""


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_whole(kind: DataType) -> bool:
    return isinstance(kind, IntegerType | LongType | ShortType | ByteType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return [field.name for field in fields] == ["key", "value"] and (
        isinstance(fields[0].dataType, StringType) and _is_bytes(fields[1].dataType)
    )


_COLUMNS: Mapping[str, tuple[Callable[[DataType], bool], str]] = {
    "value": (_is_bytes, "binary or string"),
    "key": (_is_bytes, "binary or string"),
    "headers": (_is_headers, "array<struct<key: string, value: binary>>"),
    "topic": (lambda kind: isinstance(kind, StringType), "string"),
    "partition": (_is_whole, "int"),
    "timestamp": (lambda kind: isinstance(kind, TimestampType), "timestamp"),
}


def check_schema(schema: StructType, *, has_topic: bool) -> None:
    """OptionError names a column that is missing, of a wrong type, or unknown."""
    found = {}
    for field in schema.fields:
        name = field.name.lower()
        if name in _IGNORED:
            continue
        if name not in _COLUMNS:
            raise OptionError(f"unknown column: {field.name} (columns of a topic: {', '.join(_COLUMNS)})")
        accepts, types = _COLUMNS[name]
        if not accepts(field.dataType):
            raise OptionError(f"column {field.name} must be {types}: {field.dataType.simpleString()}")
        found[name] = field
    if "value" not in found:
        raise OptionError("column value is missing")
    if "topic" not in found and not has_topic:
        raise OptionError("no topic: give the option topic, or a column topic")


def chunks(rows: Iterator[Any], schema: StructType) -> Iterator[Rows]:
    """Return what Spark gives a writer: Arrow record batches, or rows (before PySpark 4.1, in streams)."""
    for first in rows:
        if isinstance(first, pa.RecordBatch):
            yield _from_arrow(first)
        else:
            yield _from_rows([first, *islice(rows, ROWS - 1)], schema.fieldNames())


def _from_arrow(batch: pa.RecordBatch) -> Rows:
    columns = {name.lower(): batch.column(place) for place, name in enumerate(batch.schema.names)}
    found: dict[str, Sequence[Any]] = {}
    for name, column in columns.items():
        if name in ("key", "value"):
            found[f"{name}s"] = column.cast(pa.binary()).to_pylist()
        elif name == "timestamp":
            found["timestamps"] = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast("int64").to_pylist()
        elif name == "headers":
            found["headers"] = _headers(
                [each and [(h["key"], h["value"]) for h in each] for each in column.to_pylist()]
            )
        elif name in _COLUMNS:
            found[f"{name}s"] = column.to_pylist()
    return Rows(**found)


def _from_rows(rows: Sequence[Any], names: Sequence[str]) -> Rows:
    found: dict[str, Sequence[Any]] = {}
    for place, original in enumerate(names):
        name, values = original.lower(), [row[place] for row in rows]
        if name in ("key", "value"):
            found[f"{name}s"] = [None if each is None else _bytes(each) for each in values]
        elif name == "timestamp":
            found["timestamps"] = [None if each is None else _milliseconds(each) for each in values]
        elif name == "headers":
            found["headers"] = _headers([each and [(h["key"], h["value"]) for h in each] for each in values])
        elif name in _COLUMNS:
            found[f"{name}s"] = values
    return Rows(**found)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _milliseconds(time: datetime.datetime) -> int:
    return round(time.timestamp() * 1_000_000) // 1_000


def _headers(rows: Iterable[Any]) -> list[list[tuple[str, bytes | None]]]:
    found = []
    for headers in rows:
        row = []
        for name, value in headers or ():
            if name is None:
                raise BulkWriteError("a header has no key")
            row.append((name, None if value is None else _bytes(value)))
        found.append(row)
    return found


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
