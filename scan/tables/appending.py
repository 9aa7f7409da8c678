"""Appends to a table, or replaces files of it, once: the commit is bound to the snapshot that has the offsets which it
continues.

    rows -> Parquet files and manifests -> one commit: assert the snapshot, add one, set the property

Place: the last step of a round (worker.py). Blocks: callers use a thread.
Invariant: of all commits that continue one snapshot at most one succeeds, also of several processes, and with or
without an answer: the catalog compares the snapshot in the same step that replaces it, and pyiceberg's own retry, which
would compare with the newest one, is off. So after a commit without an answer the caller reads the table again, and
needs no other memory. A commit that certainly did not happen leaves no file; one that may have happened keeps them.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _OverwriteFiles

from headrace.scan.errors import SchemaError
from headrace.scan.tables.catalog import RETRIES, snapshot_view, translated
from headrace.scan.tables.file_names import name_files
from headrace.scan.tables.keyed.keys import keyed_schema
from headrace.scan.tables.layout import layout_of, terms_of
from headrace.scan.tables.state import (
    GAPS_KEPT,
    OFFSETS,
    PROGRESS,
    OffsetGap,
    TablePosition,
    TableProgress,
    offsets_text,
)

logger = logging.getLogger(__name__)

NO_RETRIES = "0"


class CommitOutcome(enum.Enum):
    """What became of a commit."""

    COMMITTED = "committed"
    CONFLICT = "conflict"
    """It did not happen: the table has another snapshot."""
    UNKNOWN = "unknown"
    """The catalog did not answer: read the table again."""


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


class WrittenFiles(FileIO):
    """The table's storage; it remembers what was written, so that the files of a failed commit can be removed."""

    def __init__(self, storage: FileIO, written: Sequence[str] = ()) -> None:
        """`written`: what others wrote for the same commit."""
        super().__init__(storage.properties)
        self._storage = storage
        self._locations = list(written)

    def new_input(self, location: str) -> InputFile:
        return self._storage.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        self._locations.append(location)
        return self._storage.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._storage.delete(location)

    def remove(self) -> None:
        """Delete what was written. What cannot be deleted stays as an orphan, with a line in the log."""
        for location in self._locations:
            try:
                self._storage.delete(location)
            except FileNotFoundError:
                continue  # pyiceberg removes manifests itself
            except Exception as error:
                logger.warning("file of a failed commit was not removed: file=%s error=%s", location, error)
        self._locations.clear()


class _ReplaceFiles(_OverwriteFiles):
    """pyiceberg's overwrite, which would keep manifests that only name deleted files."""

    def _existing_manifests(self) -> list[ManifestFile]:
        found = super()._existing_manifests()
        return [
            each
            for each in found
            if each.has_added_files() or each.has_existing_files() or each.added_snapshot_id == self._snapshot_id
        ]


class Appended(NamedTuple):
    """What became of an append. `base_id`: the snapshot that it continues; `files`: what it wrote."""

    outcome: CommitOutcome
    base_id: int | None
    files: WrittenFiles


def append(table: Table, before: TableProgress | None, add: Append) -> Appended:
    """Commit on top of the snapshot that `table` was loaded with; the table is of no use afterwards.

    `before`: the progress in that snapshot; None if it has none. UnavailableError: nothing was committed.
    """
    return _commit(table, lambda: _staged(table, before, add), [each.file_path for each in add.files])


def widen(table: Table, columns: pa.StructType, layout: Sequence[str] = (), keys: Sequence[str] = ()) -> CommitOutcome:
    """Add the columns that the table lacks, and widen others; no snapshot. A commit bound to a snapshot is not
    disturbed: rows in the older columns are as good. UnavailableError, TableError: nothing was committed.

    `layout`: what the table is partitioned by. What waited for one of these columns counts from this commit on, before
    any row has a value there. OptionError if a column cannot be used so; SchemaError if one has the name of a
    partition field. `keys`: columns of the key (keyed/keys.py), which are identifier fields from then on.
    """

    def staged() -> Transaction:
        _require_free_names(table, columns)
        table.metadata.properties[RETRIES] = NO_RETRIES
        change = table.transaction()
        with change.update_schema() as update:
            update.union_by_name(pa.schema(list(columns)))
        _identify(change, keys)
        _partition(change, layout)
        return change

    return _commit(table, staged).outcome


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


def _commit(table: Table, stage: Callable[[], Transaction], written: Sequence[str] = ()) -> Appended:
    base_id, files = table.metadata.current_snapshot_id, WrittenFiles(table.io, written)
    table.io = files
    try:
        with translated(f"table {name_of(table)}"):
            change = stage()
    except BaseException:
        files.remove()
        raise
    try:
        change.commit_transaction()
    except (CommitFailedException, ValidationException) as error:
        logger.info("table has another snapshot: table=%s base=%s error=%s", name_of(table), base_id, error)
        files.remove()
        return Appended(CommitOutcome.CONFLICT, base_id, files)
    except Exception as error:
        logger.warning("commit without an answer: table=%s base=%s error=%r", name_of(table), base_id, error)
        return Appended(CommitOutcome.UNKNOWN, base_id, files)
    return Appended(CommitOutcome.COMMITTED, base_id, files)


def name_of(table: Table) -> str:
    """Return the table's identifier as text."""
    return ".".join(table.name())


def _staged(table: Table, before: TableProgress | None, add: Append) -> Transaction:
    """The commit with its files written, and nothing sent to the catalog.

    The first requirement of its kind stays, so the snapshot that is asserted is the one that the table was loaded with.
    """
    table.metadata.properties[RETRIES] = NO_RETRIES  # in memory only: the table may have another value by now
    name_files(table.metadata.properties, table.metadata.table_uuid)  # in memory only, too
    change = table.transaction()
    summary = {OFFSETS: offsets_text(add.positions)}
    if add.removed:
        assert add.rows is None, "rows and files of others have no order"
        with _ReplaceFiles(
            operation=Operation.OVERWRITE, transaction=change, io=table.io, snapshot_properties=summary
        ) as replaced:
            for each in add.removed:
                replaced.delete_data_file(each)
            for each in add.files:
                replaced.append_data_file(each)
    elif add.files:
        assert add.rows is None, "rows and files of others have no order"
        with change._append_snapshot_producer(summary) as added:
            for each in add.files:
                added.append_data_file(each)
    elif add.rows is None or not add.rows.num_rows:
        with change.update_snapshot(snapshot_properties=summary).fast_append():
            pass
    else:
        change.append(add.rows, snapshot_properties=summary)
    snapshot = change.table_metadata.current_snapshot()
    assert snapshot is not None, "an append adds a snapshot"
    gaps = (*(before.gaps if before else ()), *add.gaps)[-GAPS_KEPT:]
    records = snapshot_view(snapshot).records
    progress = TableProgress(dict(add.positions), snapshot.snapshot_id, records, gaps, add.dead)
    change.set_properties({PROGRESS: progress.text()})
    return change
