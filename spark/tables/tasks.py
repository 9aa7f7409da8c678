"""The tasks of Spark that write a table's data files: of an append, or of a merge into a keyed table.

Place: on executors, started by worker.py. They open the bucket and the table's storage, and no metastore or catalog.

    split -> raw rows -> columns of the values (tables/values) -> Parquet files at the table's place
    SplitTask   a split of the log   its records by group, the last one per key, and a report
    (Spark)     shuffles by group
    GroupTask   a group              the last record per key of all splits -> files written again (tables/keyed)

Invariant of an append: a task decides nothing that its neighbours could decide differently. If values ask for
columns that the table lacks, or a record has to wait, it writes no file and says so: the driver makes the chunk
alone. A task that is repeated writes other files, and those of the first attempt are orphans.
Invariant of a merge: a split that is opened twice may judge its records differently (a schema that is registered
meanwhile). So each opening has an id, which its blocks and its report have; the driver commits only if every group
has read exactly the blocks that the reports name.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata

from headrace.scan.cluster import BucketAddress
from headrace.scan.plan import Split
from headrace.scan.read import SplitReader
from headrace.spark.short_errors import short_errors
from headrace.storage.clock import SystemClock
from headrace.storage.collector_tuning import tune_collector
from headrace.tables.commit.data_files import DataFilePlace, write_data_files
from headrace.tables.commit.limits import cuts_for
from headrace.tables.errors import BuildingError
from headrace.tables.keyed.merging import KeyGroups, MergedGroup, group_numbers, last_changes, merge_group
from headrace.tables.keyed.opener import KeyedOpener, OpenedChanges, keyed_opener, value_opener
from headrace.tables.layout import key_paths
from headrace.tables.log.chunks import PIN_HINT, rows_of
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


REPORTS = -1
"""The group of the splits' reports."""


class ReadBlock(NamedTuple):
    """The changes of one opening of a split in one group."""

    group: int
    split: int
    opening: bytes


class SplitReport(NamedTuple):
    """What a split has. `is_plain` False: no changes, as the driver has to decide."""

    is_plain: bool
    blocks: frozenset[ReadBlock] = frozenset()
    dead: tuple[OffsetGap, ...] = ()


class GroupReport(NamedTuple):
    """What a group has merged, and from which blocks."""

    merged: MergedGroup
    blocks: frozenset[ReadBlock]


Block = tuple[ReadBlock, bytes]
"""A block with its changes as an Arrow stream."""


def is_plain(opener: KeyedOpener, opened: OpenedChanges) -> bool:
    """Return whether nothing of this needs the driver: new columns, or a record that waits."""
    return opened.columns == opener.columns and not opened.cuts


@dataclass(frozen=True)
class SplitTask:
    """Opens splits."""

    task: AppendTask
    groups: int

    @short_errors
    def __call__(self, numbered: tuple[int, Split]) -> list[tuple[int, Block | SplitReport]]:
        """Errors of bucket and registry fail the task."""
        number, split = numbered
        raw = self.task.raw_rows(split)
        definition, metadata = self.task.definition, self.task.place.open()
        with self.task.formats() as formats:
            opener = keyed_opener(definition, metadata.schema(), formats)
            opened = opener.open(raw)
        if not is_plain(opener, opened):
            return [(REPORTS, SplitReport(is_plain=False))]
        blocks = list(blocks_of(definition, metadata, opened.changes, self.groups, number))
        report = SplitReport(True, frozenset(block for block, _ in blocks), opened.dead)
        return [(REPORTS, report), *((block.group, (block, data)) for block, data in blocks)]


def blocks_of(
    definition: Definition, metadata: TableMetadata, changes: pa.Table, groups: int, split: int
) -> Iterator[Block]:
    """Yield the last change of each key by group."""
    last = last_changes(changes)
    numbers = group_numbers(last, metadata.schema(), key_paths(definition)[0], groups)
    opening = random.Random().randbytes(8)  # not of the module's: forked workers have one state of it
    for group in np.unique(numbers).tolist():
        part = last.filter(pa.array(numbers == group))
        yield ReadBlock(group, split, opening), _to_bytes(part)


def _to_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    written: bytes = sink.getvalue().to_pybytes()
    return written


@dataclass(frozen=True)
class GroupTask:
    """Merges groups."""

    place: DataFilePlace
    definition: Definition
    groups: KeyGroups

    @short_errors
    def __call__(self, grouped: tuple[int, Iterable[Block | SplitReport]]) -> list[SplitReport | GroupReport]:
        """Errors of the table's storage fail the task; a task that is repeated writes other files."""
        tune_collector()
        group, found = grouped
        if group == REPORTS:
            return [each for each in found if isinstance(each, SplitReport)]
        parts, blocks = [], []
        for each in found:
            assert not isinstance(each, SplitReport), "reports are another group"
            blocks.append(each[0])
            parts.append(pa.ipc.open_stream(each[1]).read_all())
        metadata = self.place.open()
        files = self.groups.files.get(group, ())
        merged = merge_group(self.place, metadata, key_paths(self.definition), files, pa.concat_tables(parts))
        return [GroupReport(merged, frozenset(blocks))]
