"""One task of an append: a split of the log becomes data files of the table.

    split -> raw rows -> columns of the values (tables/values) -> Parquet files at the table's place

Place: on executors, started by worker.py. It opens the bucket and the table's storage, and no metastore or catalog.
Invariant: a task decides nothing that its neighbours could decide differently. If values ask for columns that the table
lacks, or a record has to wait, it writes no file and says so: the driver makes the chunk alone. A task that is repeated
writes other files, and those of the first attempt are orphans.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
from pyiceberg.manifest import DataFile

from headrace.scan.cluster import BucketAddress
from headrace.scan.read import SplitReader
from headrace.scan.splits import Split
from headrace.spark.short_errors import short_errors
from headrace.storage.clock import SystemClock
from headrace.storage.collector_tuning import tune_collector
from headrace.tables.commit.data_files import DataFilePlace, write_data_files
from headrace.tables.commit.file_limit import cuts_for
from headrace.tables.errors import BuildingError
from headrace.tables.log.chunks import PIN_HINT, rows_of
from headrace.tables.opening import value_opener
from headrace.tables.state import Definition, OffsetGap
from headrace.tables.values.apart.process import OpeningPool
from headrace.tables.values.formats import ValueFormats


class AppendTask(NamedTuple):
    """What all tasks of a chunk have in common."""

    place: DataFilePlace
    definition: Definition
    registry_url: str
    bucket: BucketAddress

    def raw_rows(self, split: Split) -> pa.Table:
        """Return the raw rows of a split. Errors of the bucket."""
        tune_collector()
        reader = SplitReader.open(self.bucket, SystemClock(), random.Random(), pin_hint=PIN_HINT)
        try:
            return rows_of(reader, split)
        finally:
            reader.close()

    @contextmanager
    def formats(self) -> Iterator[ValueFormats]:
        """Yield what opens values, in a process of the task."""
        formats = ValueFormats(self.registry_url, OpeningPool(size=1))
        try:
            yield formats
        finally:
            formats.close()


class TaskDone(NamedTuple):
    """What a task wrote. `is_plain` False: nothing, as the driver has to decide, or to cut the chunk."""

    is_plain: bool
    rows: int = 0
    files: tuple[DataFile, ...] = ()
    dead: tuple[OffsetGap, ...] = ()


@short_errors
def write_split(task: AppendTask, split: Split) -> TaskDone:
    """Errors of bucket, registry and the table's storage fail the task."""
    rows, metadata = task.raw_rows(split), task.place.open()
    dead: tuple[OffsetGap, ...] = ()
    with task.formats() as formats:
        opener = value_opener(task.definition, metadata.schema(), formats)
        if opener is not None:
            opened = opener.open(rows)
            if opened.columns != opener.columns or opened.cuts:
                return TaskDone(is_plain=False)
            rows, dead = opened.rows, opened.dead
    if cuts_for(metadata, rows):
        return TaskDone(is_plain=False)
    try:
        return TaskDone(True, rows.num_rows, tuple(write_data_files(task.place, metadata, rows)), dead)
    except BuildingError:  # the driver finds the rows at fault, or pauses the table
        return TaskDone(is_plain=False)
