"""Limits of what one commit writes: how many files, which rows.

Place: between opened records and the append (tables/worker.py); tasks of Spark ask whether the driver has to cut.
After a BuildingError the rows at fault are looked for: pyiceberg encodes parts of them again, into nothing. Blocks.

    opened rows -> the place of each row in the table's partitioning -> the rows that fit into FILES_MAX files, and a
    cut where the others begin

Invariant of files: rows of a partition of the topic are cut off from some offset on, so what is appended is in
offset order, and the next commit begins at the cut. A cut leaves at least one row.

    rows of a commit that could not be built -> halves that can be written, and that cannot -> the rows at fault

Invariant of rows: no file is written. A row is at fault if it alone cannot be written; at most FOUND_MAX are looked
for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import _dataframe_to_data_files, _get_field_from_arrow_table
from pyiceberg.table.metadata import TableMetadata

from headrace.tables.commit.committing import building
from headrace.tables.errors import BuildingError
from headrace.tables.layout import column_at
from headrace.tables.state import Definition
from headrace.tables.values.columns import KAFKA
from headrace.tables.values.open import Cut, Misfits, OpenedChunk, Tolerance, ValueOpener

FILES_MAX = 1_000
"""Files of one commit. Each costs a request, and a pass over the chunk's rows."""


def cuts_for(metadata: TableMetadata, rows: pa.Table) -> dict[int, Cut]:
    """Return by partition of the topic where the commit ends, because it would have more than FILES_MAX files."""
    if len(rows) <= FILES_MAX:
        return {}
    places = _places(metadata, rows)
    firsts = np.sort(np.unique(places, return_index=True)[1])
    if len(firsts) <= FILES_MAX:
        return {}
    log = _log(rows)
    partitions, offsets = (log.column(name).to_numpy()[firsts[FILES_MAX] :] for name in ("partition", "offset"))
    return {int(each): Cut(int(offsets[partitions == each].min())) for each in np.unique(partitions)}


def without(rows: pa.Table, cuts: dict[int, Cut]) -> pa.Table:
    """Return the rows before these cuts."""
    log = _log(rows)
    partitions, offsets = (log.column(name).to_numpy() for name in ("partition", "offset"))
    stays = np.ones(len(rows), bool)
    for partition, cut in cuts.items():
        stays &= (partitions != partition) | (offsets < cut.offset)
    return rows.filter(pa.array(stays))


def _places(metadata: TableMetadata, rows: pa.Table) -> NDArray[np.int64]:
    """Return a number for each row: rows with the same values of all partition fields, which are written to one file,
    have the same number.
    """
    schema, places = metadata.schema(), np.zeros(len(rows), np.int64)
    for field in metadata.spec().fields:
        name = schema.find_column_name(field.source_id)
        assert name is not None, "a partition field has its column"
        transform = field.transform.pyarrow_transform(schema.find_field(field.source_id).field_type)
        values = transform(_get_field_from_arrow_table(rows, name))
        chunk = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        codes = pc.fill_null(chunk.dictionary_encode().indices, -1).to_numpy().astype(np.int64)
        # One number per pair of place so far and value (-1 is null), made small again: it cannot overflow.
        pairs = places * (int(codes.max(initial=0)) + 2) + codes + 1
        _, places = np.unique(pairs, return_inverse=True)
    return places


def _log(rows: pa.Table) -> pa.Table:
    if KAFKA not in rows.column_names:
        return rows
    return pa.table({name: pc.struct_field(rows.column(KAFKA), name) for name in ("partition", "offset")})


FOUND_MAX = 100


def rows_at_fault(metadata: TableMetadata, rows: pa.Table) -> dict[int, str]:
    """Return the numbers of rows that cannot be written, in order, each with the reason."""
    found: dict[int, str] = {}
    parts = [(0, rows.num_rows)]
    while parts and len(found) < FOUND_MAX:
        start, end = parts.pop()
        if start == end or not (reason := _why_unwritable(metadata, rows.slice(start, end - start))):
            continue
        if end - start == 1:
            found[start] = reason
        else:
            middle = (start + end) // 2
            parts += [(middle, end), (start, middle)]
    return found


def _why_unwritable(metadata: TableMetadata, rows: pa.Table) -> str:
    try:
        with building("the record"):
            list(_dataframe_to_data_files(metadata, rows, _Nowhere()))
    except BuildingError as error:
        return str(error)
    return ""


def without_faults(metadata: TableMetadata, definition: Definition, opened: OpenedChunk) -> OpenedChunk | None:
    """Return the chunk without the rows at fault: they are records that do not fit. None if no row alone is at fault.

    A table without dead letters waits at the first one.
    """
    faults = rows_at_fault(metadata, opened.rows)
    if not faults:
        return None
    tolerates = definition.has_dead_letters and Tolerance(definition.tolerance) is not Tolerance.NONE
    misfits = Misfits(list(opened.dead), dict(opened.cuts))
    places = [column_at(opened.rows, path).to_pylist() for path in _place_columns(opened.rows)]
    kept: list[int] = []
    for row, (partition, offset) in enumerate(zip(*places, strict=True)):
        if partition in misfits.cuts and offset >= misfits.cuts[partition].offset:
            continue
        if row in faults:
            misfits.add(partition, offset, faults[row], is_tolerated=tolerates)
        elif len(faults) == FOUND_MAX and row > max(faults):
            misfits.cuts[partition] = Cut(offset)
        else:
            kept.append(row)
    rows = opened.rows.take(pa.array(kept, pa.int64()))
    return OpenedChunk(opened.columns, rows, tuple(misfits.before_cuts()), misfits.cuts)


def _place_columns(rows: pa.Table) -> tuple[str, str]:
    prefix = f"{KAFKA}." if KAFKA in rows.column_names else ""
    return f"{prefix}partition", f"{prefix}offset"


@dataclass(frozen=True, slots=True)
class WritableJudge:
    """Says why records do not fit: their values, or their rows cannot be written."""

    opener: ValueOpener
    metadata: TableMetadata

    def reasons(self, raw: pa.Table) -> list[str]:
        """Do as DeadLetterJudge."""
        found = self.opener.reasons(raw)
        for row, reason in enumerate(found):
            if not reason:
                rows = self.opener.tolerant().open(raw.slice(row, 1)).rows
                found[row] = next(iter(rows_at_fault(self.metadata, rows).values()), "")
        return found


class _Nowhere(FileIO):
    """A storage that forgets what is written."""

    def __init__(self) -> None:
        super().__init__({})

    def new_input(self, location: str) -> InputFile:
        raise AssertionError(f"nothing is read while rows are written: {location}")

    def new_output(self, location: str) -> OutputFile:
        return _Forgotten(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Do nothing: there is no file."""


class _Forgotten(OutputFile):
    def __len__(self) -> int:
        return 0

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        raise AssertionError(f"nothing is read while rows are written: {self.location}")

    def create(self, overwrite: bool = False) -> OutputStream:
        stream: OutputStream = pa.BufferOutputStream()
        return stream
