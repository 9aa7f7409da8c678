"""Tasks of a pass on Spark that end in the middle, or decide wrongly; sent to executors in place of the real ones.

Fault model: a Python worker is killed at its first attempt: when it has sent some keys, or after it stored its files
and before its report. Spark repeats the task.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy
from pyarrow import compute
from pyspark import TaskContext

from headrace.compactor.cleaning.key_map import Offsets
from headrace.compactor.spark.cleaning_tasks import PART_ROW, PartReport, RewriteTask, ScanTask


def _end_first_attempt() -> None:
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        os.kill(os.getpid(), signal.SIGKILL)


class KilledScan(ScanTask):
    """Ends after the first rows."""

    def rows(self, number: int) -> Iterator[Any]:
        for count, batch in enumerate(super().rows(number)):
            if count == 2:
                _end_first_attempt()
            yield batch


class KilledRewrite(RewriteTask):
    """Ends after its files are stored."""

    async def rewritten(self, number: int, superseded: Offsets) -> PartReport:
        report = await super().rewritten(number, superseded)
        _end_first_attempt()
        return report


class LastValueIsLost(RewriteTask):
    """A bug: the record after a superseded one goes too."""

    async def rewritten(self, number: int, superseded: Offsets) -> PartReport:
        return await super().rewritten(number, numpy.union1d(superseded, superseded + 1))


class SecretPerTask(ScanTask):
    """A bug: digests of two parts cannot be compared."""

    def rows(self, number: int) -> Iterator[Any]:
        self.secret = b"%d" % number
        yield from super().rows(number)


class CleanPartIsLeftOut(ScanTask):
    """A bug: only keys of the dirty part are compared."""

    def rows(self, number: int) -> Iterator[Any]:
        for batch in super().rows(number):
            yield batch.filter(compute.or_(batch.column(3), compute.less_equal(batch.column(2), PART_ROW)))


class RetentionIsForgotten(RewriteTask):
    """A bug: the horizon of delete markers is the time of the pass."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.opened = msgspec.structs.replace(self.opened, delete_retention_ms=0)


class PartIsForgotten(RewriteTask):
    """A bug: what the last part wrote is taken for left."""

    async def rewritten(self, number: int, superseded: Offsets) -> PartReport:
        report = await super().rewritten(number, superseded)
        if number == len(self.opened.parts) - 1:
            inputs = [extent for _, runs in report.files for run in runs for swap in run for extent in swap.inputs]
            report.files, report.left = [], [*report.left, *inputs]
        return report


class UnreservedRewrite(RewriteTask):
    """A bug: files get new ids, as if they had no keys."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.opened = msgspec.structs.replace(self.opened, file_ids=tuple(() for _ in self.opened.parts))
