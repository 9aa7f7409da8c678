"""Opens the records of a chunk: rows for the table, records that do not fit, and where a partition has to wait.

Place: between the raw rows of a scan (rows.py) and the append (worker.py).
Invariant: each record is a row, or is in `dead`, or is at or behind its partition's cut. If the table lacks columns,
there are no rows: the table gets the columns first, and the chunk is read again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from headrace.scan.errors import MisfitError, SchemaError
from headrace.scan.tables.state import OffsetGap
from headrace.scan.tables.values.columns import COLUMNS_MAX, KAFKA, ValueShape, leaves, widened_struct
from headrace.scan.tables.values.fractions import Move, moved, with_fractions_apart

DEAD_RANGES_MAX = 5_000
"""Ranges of records that do not fit in one commit: the table's property names them until they are elsewhere."""


class Tolerance(enum.Enum):
    """The errors that do not pause a table."""

    NONE = "none"
    INVALID_DATA = "invalid_data"
    """A record that does not fit goes to the dead-letter table; a schema that cannot be followed pauses the table."""
    ALL = "all"
    """Records with such a schema go there, too."""


class ValueFormat(Protocol):
    """Opens values."""

    def begin(self) -> None:
        """A chunk begins."""

    def open(self, value: bytes) -> tuple[ValueShape, Any]:
        """Return what columns the value asks for, and their values by name. MisfitError, SchemaError;
        UnavailableError: try the chunk again.
        """


class _Room(NamedTuple):
    """Whether the table has room for a shape: `why_not` empty. `moves`: where its values go (fractions.py)."""

    shape: ValueShape
    why_not: str = ""
    moves: dict[str, Move] | None = None


class Cut(NamedTuple):
    """The record at which a partition waits. `reason` empty: it goes on in the next commit."""

    offset: int
    reason: str = ""


@dataclass(slots=True)
class OpenedChunk:
    """What became of a chunk. `columns`: those of the values that the table needs."""

    columns: pa.StructType
    rows: pa.Table
    dead: tuple[OffsetGap, ...]
    cuts: dict[int, Cut]


@dataclass(slots=True)
class ChunkOpener:
    """Opens one chunk for a table with this schema, as pyiceberg has it in Arrow."""

    form: ValueFormat
    schema: pa.Schema
    tolerance: Tolerance
    _table: pa.StructType = field(init=False)
    _columns: pa.StructType = field(init=False)
    _room: dict[int, _Room] = field(default_factory=dict)
    """By shape, which is kept alive."""
    _dead: list[OffsetGap] = field(default_factory=list)
    _cuts: dict[int, Cut] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._table = self._columns = value_columns(self.schema)

    @property
    def columns(self) -> pa.StructType:
        """The columns that the table has, but for `kafka`."""
        return self._table

    def open(self, raw: pa.Table) -> OpenedChunk:
        """UnavailableError: the format's registry does not answer."""
        self.form.begin()
        rows = [self._batch(batch) for batch in raw.to_batches()]
        table = pa.concat_tables(rows) if rows else self.schema.empty_table()
        return OpenedChunk(self._columns, table, tuple(self._dead_before_cuts()), self._cuts)

    def reasons(self, raw: pa.Table) -> list[str]:
        """Return why each of these records does not fit; empty: it would by now."""
        self.form.begin()
        return [self._why_alone(value) for value in raw.column("value").to_pylist()]

    def _why_alone(self, value: bytes | None) -> str:
        try:
            opened = self._opened(value)
            pa.array([opened], self._columns)
        except (MisfitError, SchemaError) as error:
            return str(error)
        except _NOT_ARROW as error:
            return _no_column(error)
        return ""

    def _batch(self, batch: pa.RecordBatch) -> pa.Table:
        kept: list[int] = []
        values: list[Any] = []
        for row, (partition, offset, value) in enumerate(_records(batch)):
            if partition in self._cuts:
                continue
            try:
                opened = self._opened(value)
            except MisfitError as error:
                self._misfit(partition, offset, str(error), self.tolerance is not Tolerance.NONE)
            except SchemaError as error:
                self._misfit(partition, offset, str(error), self.tolerance is Tolerance.ALL)
            else:
                kept.append(row)
                values.append(opened)
        if self._columns is not self._table:
            return self.schema.empty_table()
        return self._rows(batch, kept, values)

    def _opened(self, value: bytes | None) -> Any:
        """The columns of a value. MisfitError, SchemaError if the table has no room for it."""
        if value is None:
            return {}
        shape, opened = self.form.open(value)
        if (known := self._room.get(id(shape))) is None:
            known = self._room[id(shape)] = self._make_room(shape)
        if known.why_not:
            raise (SchemaError if shape.is_declared else MisfitError)(f"{shape.name}: {known.why_not}")
        return opened if known.moves is None else moved(opened, known.moves)

    def _make_room(self, shape: ValueShape) -> _Room:
        """Widen the columns."""
        moves = None
        try:
            if shape.is_declared:
                columns = widened_struct(self._columns, shape.columns)
            else:
                wanted, moves = with_fractions_apart(self._table, shape.columns)
                columns = widened_struct(self._table, widened_struct(self._columns, wanted, is_new=True))
        except SchemaError as error:
            return _Room(shape, str(error))
        if columns != self._columns:
            if leaves(columns) > COLUMNS_MAX:
                return _Room(shape, f"the table would have more than {COLUMNS_MAX} columns")
            self._columns = columns
        return _Room(shape, moves=moves)

    def _misfit(self, partition: int, offset: int, reason: str, is_tolerated: bool) -> None:
        last = self._dead[-1] if self._dead else None
        if not is_tolerated:
            self._cuts[partition] = Cut(offset, f"partition {partition}, offset {offset}: {reason}")
        elif last is not None and (last.partition, last.end) == (partition, offset):
            self._dead[-1] = OffsetGap(partition, last.start, offset + 1)
        elif len(self._dead) == DEAD_RANGES_MAX:
            self._cuts[partition] = Cut(offset)
        else:
            self._dead.append(OffsetGap(partition, offset, offset + 1))

    def _dead_before_cuts(self) -> Iterator[OffsetGap]:
        for each in sorted(self._dead, key=lambda each: (each.partition, each.start)):
            cut = self._cuts.get(each.partition)
            end = each.end if cut is None else min(each.end, cut.offset)
            if each.start < end:
                yield OffsetGap(each.partition, each.start, end)

    def _rows(self, batch: pa.RecordBatch, kept: list[int], values: list[Any]) -> pa.Table:
        try:
            opened = pa.array(values, self._table)
        except _NOT_ARROW:
            return self._rows(batch, *self._without_misfits(batch, kept, values))
        records = batch.take(pa.array(kept, pa.int64()))
        parts = dict(zip((each.name for each in self._table), opened.flatten(), strict=True))
        parts[KAFKA] = kafka_struct(records, self.schema.field(KAFKA).type)
        return pa.Table.from_arrays([parts[name] for name in self.schema.names], schema=self.schema)

    def _without_misfits(
        self, batch: pa.RecordBatch, kept: list[int], values: list[Any]
    ) -> tuple[list[int], list[Any]]:
        """The records with values that Arrow can put into the columns: a number can be too large, a text no Unicode."""
        records, fitting = list(_records(batch)), []
        for row, value in zip(kept, values, strict=True):
            partition, offset, _ = records[row]
            if partition in self._cuts and offset >= self._cuts[partition].offset:
                continue
            try:
                pa.array([value], self._table)
            except _NOT_ARROW as error:
                self._misfit(partition, offset, _no_column(error), self.tolerance is not Tolerance.NONE)
            else:
                fitting.append((row, value))
        return [row for row, _ in fitting], [value for _, value in fitting]


_NOT_ARROW = (pa.ArrowException, ValueError, TypeError, OverflowError)


def _no_column(error: Exception) -> str:
    return f"the value does not fit its column: {error}"


def _records(batch: pa.RecordBatch) -> Iterator[tuple[int, int, bytes | None]]:
    columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
    return zip(*columns, strict=True)


def value_columns(schema: pa.Schema) -> pa.StructType:
    """The columns of a table that are not `kafka`."""
    return pa.struct([each for each in schema if each.name != KAFKA])


def kafka_struct(records: pa.RecordBatch, kind: pa.StructType) -> pa.StructArray:
    """The rest of each record, as the column `kafka` has it."""
    parts = [records.column(each.name).cast(each.type) for each in kind]
    return pa.StructArray.from_arrays(parts, fields=list(kind))
