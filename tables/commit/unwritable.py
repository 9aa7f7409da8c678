"""Finds the rows that cannot be written: pyiceberg encodes parts of them again, into nothing.

    rows of a commit that could not be built -> halves that can be written, and that cannot -> the rows at fault

Place: after a BuildingError, in worker.py and for the reasons of dead letters. Blocks.
Invariant: no file is written. A row is at fault if it alone cannot be written; at most FOUND_MAX are looked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table.metadata import TableMetadata

from headrace.tables.commit.building import building
from headrace.tables.errors import BuildingError
from headrace.tables.keys import column_at
from headrace.tables.state import Definition
from headrace.tables.values.columns import KAFKA
from headrace.tables.values.open import Cut, Misfits, OpenedChunk, Tolerance, ValueOpener

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
