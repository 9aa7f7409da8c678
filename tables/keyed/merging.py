"""Decides which record of each key is its row, to write the data files with changed keys again.

Place: between opened records (opener.py) and commit/appending.py, which replaces the files in one commit; in tasks
of Spark, or in the driver. The decision is pure, on Arrow; the writing blocks.

    changes       a row per record: its key, its place in the log, whether it deletes, and the columns of the table
    last_changes  one of them per key
    replaced      the rows of a data file that have a later record of their key

Invariant: within a partition of the topic the higher offset wins, in any order of arrival and for any repetition.
Changes of a commit that begin before the table's offsets, or come again, give the same rows, if they reach the end
of what the table has. Of records of one key in several partitions, which only changes of the partition count and
unusual producers make, the one with the later timestamp wins, then the one of the higher partition; what the table
had before loses. key_order.py sees that a key which moved with a change of the count has its records in order.

    files of the snapshot -> groups by the bucket of the key
    a group: its changes -> the last one per key -> the rows that go -> those files again, with the new rows

Invariant of files: copy-on-write: no delete files, so each reader of Iceberg reads the table. A group has every row
of its keys, and no other group has one, so groups are merged apart. A file without a row that goes is not touched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import BucketTransform

from headrace.tables.catalog import name_of
from headrace.tables.commit.committing import building
from headrace.tables.commit.data_files import DataFilePlace, read_tasks, write_data_files
from headrace.tables.layout import column_at, joined_keys

KEY, PARTITION, OFFSET, TIMESTAMP, DELETES = "#key", "#partition", "#offset", "#timestamp", "#deletes"
"""Columns of a change next to those of the table, which have no such characters."""
PLACE = pa.schema(
    [(KEY, pa.large_binary()), (PARTITION, pa.int32()), (OFFSET, pa.int64()), (TIMESTAMP, pa.int64()),
     (DELETES, pa.bool_())]
)  # fmt: skip
_NUMBER = "#number"


def changes_of(place: pa.Table, rows: pa.Table) -> pa.Table:
    """Changes with these places (PLACE) and rows, in the same order."""
    columns = [*(place.column(name) for name in PLACE.names), *rows.columns]
    return pa.Table.from_arrays(columns, schema=pa.schema([*PLACE, *rows.schema]))


def rows_in(changes: pa.Table) -> pa.Table:
    """The rows of changes, as the table has them."""
    return changes.select(changes.column_names[len(PLACE) :])


def last_changes(changes: pa.Table) -> pa.Table:
    """The change of each key that is left."""
    place = changes.select([KEY, PARTITION, OFFSET, TIMESTAMP])
    place = place.append_column(_NUMBER, pa.array(np.arange(len(changes))))
    place = _last_of_each(place.sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")]), [KEY, PARTITION])
    place = _last_of_each(place.sort_by([(TIMESTAMP, "ascending"), (PARTITION, "ascending")]), [KEY])
    return changes.take(place.column(_NUMBER))


def _last_of_each(ordered: pa.Table, keys: list[str]) -> pa.Table:
    at = "#at"
    numbered = ordered.select(keys).append_column(at, pa.array(np.arange(len(ordered))))
    found = numbered.group_by(keys, use_threads=False).aggregate([(at, "max")]).column(f"{at}_max")
    return ordered.take(found.combine_chunks().sort())


def replaced(keys: pa.ChunkedArray, last: pa.Table) -> NDArray[np.bool_]:
    """Return which rows of a data file go, by their joined keys (keys.py)."""
    goes: NDArray[np.bool_] = pc.is_in(keys, value_set=last.column(KEY).combine_chunks()).to_numpy()
    return goes


WRITE_BYTES = 512 * 1024 * 1024
"""Rows in memory that are written together: pyiceberg's default size of a file, before compression."""


class KeyGroups(NamedTuple):
    """The files of a snapshot by group: the keys of a group have its number as their bucket, modulo `buckets`."""

    buckets: int
    files: dict[int, tuple[FileScanTask, ...]]

    @property
    def stored_bytes(self) -> int:
        """Stored bytes of all files."""
        return sum(task.file.file_size_in_bytes for tasks in self.files.values() for task in tasks)


class MergedGroup(NamedTuple):
    """What became of a group: `files` replace `removed`. `put` rows are new, `gone` rows are not there any more."""

    removed: tuple[DataFile, ...] = ()
    files: tuple[DataFile, ...] = ()
    put: int = 0
    gone: int = 0


def groups_of(table: Table, paths: Sequence[str]) -> KeyGroups:
    """Group the files of the current snapshot: by the key's bucket, as far as every file was written with one. Errors
    of the storage as UnavailableError; TableError for files that pyiceberg does not read.
    """
    metadata = table.metadata
    with building(f"table {name_of(table)}"):
        tasks = list(table.scan().plan_files())
    places = {spec.spec_id: _bucket_of(spec, metadata.schema(), paths[0]) for spec in metadata.partition_specs}
    count = places[metadata.default_spec_id][1]
    for task in tasks:
        at, buckets = places[task.file.spec_id]
        count = 1 if buckets == 1 or task.file.partition[at] is None else math.gcd(count, buckets)
    files: dict[int, list[FileScanTask]] = {}
    for task in tasks:
        at, _ = places[task.file.spec_id]
        files.setdefault(0 if count == 1 else task.file.partition[at] % count, []).append(task)
    return KeyGroups(count, {group: tuple(each) for group, each in sorted(files.items())})


def _bucket_of(spec: PartitionSpec, schema: Schema, path: str) -> tuple[int, int]:
    """Return where the key's bucket is in a file's partition, and how many there are; 1: the spec has none."""
    if path in schema.column_names:
        source = schema.find_field(path).field_id
        for at, field in enumerate(spec.fields):
            if field.source_id == source and isinstance(field.transform, BucketTransform):
                return at, field.transform.num_buckets
    return 0, 1


def group_numbers(changes: pa.Table, schema: Schema, path: str, count: int) -> NDArray[np.int64]:
    """Return the group of each change. `path`: the key's first column; `count`: of the groups."""
    if count == 1:
        return np.zeros(len(changes), np.int64)
    bucket = BucketTransform(count).pyarrow_transform(schema.find_field(path).field_type)
    column = column_at(rows_in(changes), path).combine_chunks()
    return np.asarray(bucket(column).to_numpy(zero_copy_only=False), np.int64)


def merge_group(
    place: DataFilePlace, metadata: TableMetadata, paths: Sequence[str], files: Iterable[FileScanTask], parts: pa.Table
) -> MergedGroup:
    """Merge the changes `parts` into a group's files. `metadata`: of `place.open()`. Errors as write_data_files."""
    last = last_changes(parts)
    writer, removed = _GroupWriter(place, metadata), []
    gone, schema = 0, metadata.schema()
    with building(f"storage of {metadata.location}"):
        storage = load_file_io(place.storage, metadata.location)
        keys = schema.select(*paths)
        for task in files:
            rows = read_tasks(metadata, storage, [task], keys)
            goes = replaced(joined_keys([column_at(rows, path) for path in paths]), last)
            if goes.any():
                writer.add(read_tasks(metadata, storage, [task], schema).filter(pa.array(~goes)))
                removed.append(task.file)
                gone += int(goes.sum())
    is_put = ~last.column(DELETES).to_numpy()
    writer.add(rows_in(last.filter(pa.array(is_put))))
    return MergedGroup(tuple(removed), tuple(writer.close()), int(is_put.sum()), gone)


class _GroupWriter:
    """Writes rows to files of about the table's size."""

    def __init__(self, place: DataFilePlace, metadata: TableMetadata) -> None:
        self._place, self._metadata = place, metadata
        self._schema = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
        self._rows: list[pa.Table] = []
        self._files: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        if len(rows):
            self._rows.append(rows.cast(self._schema))
        if sum(each.nbytes for each in self._rows) >= WRITE_BYTES:
            self._write()

    def close(self) -> list[DataFile]:
        """Return the files."""
        self._write()
        return self._files

    def _write(self) -> None:
        if self._rows:
            self._files += write_data_files(self._place, self._metadata, pa.concat_tables(self._rows))
        self._rows = []
