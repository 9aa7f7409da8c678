"""Appends to a table, or replaces files of it, once: the commit is bound to the snapshot that has the offsets which it
continues.

    rows -> Parquet files and manifests -> one commit (committing.py): assert the snapshot, add one, set the property

Place: the last step of a round (worker.py). Blocks: callers use a thread.
Invariant: rows and offsets change in the same commit, which is bound to the snapshot that has the offsets before it; so
of all appends that continue one snapshot at most one succeeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation

from headrace.tables.commit.committing import CommitOutcome, CommitResult, commit, set_progress
from headrace.tables.commit.data_files import write_files
from headrace.tables.commit.file_names import name_files
from headrace.tables.commit.snapshots import AppendWithOffsets, KnownManifests, ReplaceFiles
from headrace.tables.errors import SchemaError
from headrace.tables.layout import keyed_schema, layout_of, terms_of
from headrace.tables.state import GAPS_KEPT, OffsetGap, TablePosition, TableProgress


@dataclass(frozen=True, slots=True)
class Append:
    """What one commit adds: rows, where the table is after it, and which offsets were lost on the way."""

    rows: pa.Table | None
    positions: Mapping[int, TablePosition]
    gaps: tuple[OffsetGap, ...] = ()
    dead: tuple[OffsetGap, ...] = ()
    """Records below the positions that are not in the rows, and are due in the dead-letter table."""
    files: tuple[DataFile, ...] = ()
    """Data files with more rows, which others wrote for this commit, in their order (data_files.py)."""
    removed: tuple[DataFile, ...] = ()
    """Data files of the snapshot that the commit continues: their rows are in `files` again, or go (keyed/)."""


def append(table: Table, before: TableProgress | None, add: Append) -> CommitResult:
    """Commit on top of the snapshot that `table` was loaded with; the table is of no use afterwards.

    `before`: the progress in that snapshot; None if it has none. UnavailableError: nothing was committed.
    """
    return commit(table, lambda: _staged(table, before, add), [each.file_path for each in add.files])


def widen(table: Table, columns: pa.StructType, layout: Sequence[str] = (), keys: Sequence[str] = ()) -> CommitOutcome:
    """Add the columns that the table lacks, and widen the types of others. This makes no snapshot, so an append that
    is under way still commits: its rows, in the older columns, remain valid.

    `layout`: the terms by which the table is partitioned. A term for which the column did not exist yet takes effect in
    this commit, before any row has a value in that column. `keys`: the columns of the key (keys.py), which become
    identifier fields.
    UnavailableError, TableError: nothing was committed. OptionError if the table cannot be partitioned by a column;
    SchemaError if a column has the name of a partition field.
    """

    def staged() -> Transaction:
        _require_free_names(table, columns)
        change = table.transaction()
        with change.update_schema() as update:
            update.union_by_name(pa.schema(list(columns)))
        _identify(change, keys)
        _partition(change, layout)
        return change

    return commit(table, staged).outcome


def _identify(change: Transaction, keys: Sequence[str]) -> None:
    """Make the key's columns identifier fields, if they came with this change: no row without them was ever added."""
    schema = change.table_metadata.schema()
    if not keys or schema.identifier_field_names() == set(keys):
        return
    if any(key not in schema.column_names for key in keys):
        return  # the rest of them comes later
    keyed_schema(schema, keys)
    with change.update_schema(allow_incompatible_changes=True) as update:
        for key in keys:
            update.update_column(key, required=True)
        update.set_identifier_fields(*keys)


def _require_free_names(table: Table, columns: pa.StructType) -> None:
    """Iceberg's readers take a partition field and a column of one name for the same."""
    have = {field.name for field in table.schema().fields}
    taken = {field.name for spec in table.metadata.partition_specs for field in spec.fields}
    if clash := [each.name for each in columns if each.name not in have and each.name in taken]:
        raise SchemaError(f"column {clash[0]} has the name of a partition field of the table")


def _partition(change: Transaction, layout: Sequence[str]) -> None:
    """Partition by what has its column now. What the table was partitioned by before, a user has taken away."""
    schema, specs = change.table_metadata.schema(), change.table_metadata.partition_specs
    wanted, _ = layout_of(terms := terms_of(layout, is_valued=True), schema)
    known = {(field.source_id, field.transform) for spec in specs for field in spec.fields}
    new = {field.name for field in wanted.fields if (field.source_id, field.transform) not in known}
    if not new:
        return
    with change.update_spec() as update:
        for term in terms:
            if term.name in new:
                update.add_field(term.column, term.transform, term.name)


def _staged(table: Table, before: TableProgress | None, add: Append) -> Transaction:
    """Return the commit with its files written, and nothing sent to the catalog.

    The first requirement of its kind stays, so the snapshot that is asserted is the one that the table was loaded with.
    """
    assert add.rows is None or not (add.files or add.removed), "rows and files of others have no order"
    name_files(table.metadata.properties, table.metadata.table_uuid)  # in memory only
    change = table.transaction()
    if add.removed:
        replaced = ReplaceFiles(Operation.OVERWRITE, change, table.io, KnownManifests(), add.positions, merges=False)
        replaced.replace(add.removed, add.files)
    else:
        files = add.files if add.rows is None else write_files(table.metadata, table.io, add.rows)
        with AppendWithOffsets(Operation.APPEND, change, table.io) as added:
            added.offsets = add.positions
            for each in files:
                added.append_data_file(each)
    gaps = (*(before.gaps if before else ()), *add.gaps)[-GAPS_KEPT:]
    set_progress(change, TableProgress(dict(add.positions), gaps=gaps, dead=add.dead))
    return change
