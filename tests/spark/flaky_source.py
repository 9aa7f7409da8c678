"""A compaction source with tasks that all fail once after they stored their files: Spark repeats them.

Fault model: between its last put and its report to the driver, a task raises, or its Python worker is killed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from headrace.compactor.spark.source import CompactionSource, MergeWriter, PlanPart, WrittenPart


class FlakySource(CompactionSource):
    """Registered in the place of CompactionSource."""

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return FlakyWriter(self._task())


class FlakyWriter(MergeWriter):
    """Each task's first attempt is lost."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        written = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise ConnectionError("the executor is gone")
        return written


class KilledSource(CompactionSource):
    """Registered in the place of CompactionSource."""

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return KilledWriter(self._task())


class KilledWriter(MergeWriter):
    """The worker of each task's first attempt is killed."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        written = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return written


class UnreservedSource(CompactionSource):
    """A bug: tasks store under new ids, as if files had no keys."""

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return UnreservedWriter(self._task())


class UnreservedWriter(MergeWriter):
    """The reservations are ignored."""

    async def _merge(self, parts: Sequence[PlanPart]) -> WrittenPart:
        return await super()._merge([msgspec.structs.replace(part, file_ids=()) for part in parts])
