"""Opens the records of a chunk: rows for the table, records that do not fit, and where a partition has to wait.

Place: between the raw rows of a scan (rows.py) and the append (worker.py).
Invariant: each record is a row, or is in `dead`, or is at or behind its partition's cut. If the table lacks columns,
there are no rows: the table gets the columns first, and the chunk is read again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tables.errors import MisfitError, SchemaError
from headrace.tables.state import OffsetGap
from headrace.tables.values.columns import COLUMNS_MAX, KAFKA, ValueShape, leaves, widened_struct
from headrace.tables.values.fractions import Move, moved, with_fractions_apart
from headrace.tables.values.limits import require_openable
from headrace.tables.values.times import require_times

PORTION_BYTES = 4 * 1024 * 1024
"""Bytes of values that are Python's objects at one time: these take up to some thirty times as much memory."""
ROOM_PARTS_MAX = 100_000
"""Columns of all shapes that are remembered, with their room, while a chunk is opened."""
REASON_CHARACTERS_MAX = 1_000
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

    def begin(self, values: Sequence[bytes | None]) -> None:
        """A chunk with these values begins."""

    def open(self, value: bytes) -> tuple[ValueShape, Any]:
        """Return what columns the value asks for, and their values by name. MisfitError, SchemaError;
        UnavailableError: try the chunk again. LaterError: open it in the next chunk, if it is not this one's first.
        """


class _Room(NamedTuple):
    """Whether the table has room for a shape: `why_not` empty. `moves`: where its values go (fractions.py)."""

    shape: ValueShape
    why_not: str = ""
    moves: dict[str, Move] | None = None


class LaterError(Exception):
    """The chunk has used up what it may ask for: the record is opened in the next one."""


class RecordWatch(Protocol):
    """Watches the opening of a chunk: its time is limited, and some records are known to take too much."""

    def begin(self, row: int, size_bytes: int) -> None:
        """This row of the chunk is opened next; -1: many values, of these bytes, become columns."""

    def why_refused(self, partition: int, offset: int) -> str:
        """Return why this record is not opened; empty: it is."""

    def is_over(self, row: int) -> bool:
        """Return whether the chunk has used up its time before this row: it is opened in the next chunk."""


class Unwatched:
    """Implements RecordWatch without a limit."""

    def begin(self, row: int, size_bytes: int) -> None:
        """Do nothing."""

    def why_refused(self, partition: int, offset: int) -> str:
        return ""

    def is_over(self, row: int) -> bool:
        return False


class ValueOpener(Protocol):
    """Opens the chunks of a table: here (ChunkOpener), or in a process (apart/)."""

    @property
    def columns(self) -> pa.StructType:
        """The columns that the table has, but for `kafka`."""

    def open(self, raw: pa.Table) -> OpenedChunk:
        """UnavailableError: the format's registry does not answer."""

    def reasons(self, raw: pa.Table) -> list[str]:
        """Return why each of these records does not fit; empty: it would by now."""

    def tolerant(self) -> ValueOpener:
        """Return one that takes each record that does not fit for a dead letter."""


class Cut(NamedTuple):
    """The record at which a partition waits. `reason` empty: the next commit continues there."""

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
class Misfits:
    """The records of a chunk that do not fit: dead letters, and where partitions wait."""

    dead: list[OffsetGap] = field(default_factory=list)
    cuts: dict[int, Cut] = field(default_factory=dict)

    def add(self, partition: int, offset: int, reason: str, *, is_tolerated: bool) -> None:
        """Add one; those of a partition come in order."""
        last = self.dead[-1] if self.dead else None
        if not is_tolerated:
            reason = f"partition {partition}, offset {offset}: {reason}"
            self.cuts[partition] = Cut(offset, reason[:REASON_CHARACTERS_MAX])
        elif last is not None and (last.partition, last.end) == (partition, offset):
            self.dead[-1] = OffsetGap(partition, last.start, offset + 1)
        elif len(self.dead) >= DEAD_RANGES_MAX:
            self.cuts[partition] = Cut(offset)
        else:
            self.dead.append(OffsetGap(partition, offset, offset + 1))

    def before_cuts(self) -> Iterator[OffsetGap]:
        """Yield the dead letters of the chunk's commit."""
        for each in sorted(self.dead, key=lambda each: (each.partition, each.start)):
            cut = self.cuts.get(each.partition)
            end = each.end if cut is None else min(each.end, cut.offset)
            if each.start < end:
                yield OffsetGap(each.partition, each.start, end)


@dataclass(slots=True)
class ChunkOpener:
    """Opens one chunk for a table with this schema, as pyiceberg has it in Arrow."""

    form: ValueFormat
    schema: pa.Schema
    tolerance: Tolerance
    watch: RecordWatch = field(default_factory=Unwatched)
    batch_rows: int | None = None
    """Records that become columns together; None: as they come."""
    _table: pa.StructType = field(init=False)
    _columns: pa.StructType = field(init=False)
    _room: dict[int, _Room] = field(default_factory=dict)
    """Room by shape, which is kept alive."""
    _room_parts: int = 0
    _is_begun: bool = False
    """Whether a record of the chunk was opened: each chunk has one at least."""
    _misfits: Misfits = field(default_factory=Misfits)

    def __post_init__(self) -> None:
        self._table = self._columns = value_columns(self.schema)

    @property
    def columns(self) -> pa.StructType:
        """The columns that the table has, but for `kafka`."""
        return self._table

    def open(self, raw: pa.Table) -> OpenedChunk:
        """UnavailableError: the format's registry does not answer."""
        self.form.begin(_values(raw))
        rows = [self._batch(first, batch) for first, batch in _portions(raw, self.batch_rows)]
        table = pa.concat_tables(rows) if rows else self.schema.empty_table()
        return OpenedChunk(self._columns, table, tuple(self._misfits.before_cuts()), self._misfits.cuts)

    def reasons(self, raw: pa.Table) -> list[str]:
        """Return why each of these records does not fit; empty: it would by now."""
        self.form.begin(_values(raw))
        return [
            self._why_alone(first + row, *record)
            for first, batch in _portions(raw)
            for row, record in enumerate(_records(batch))
        ]

    def tolerant(self) -> ChunkOpener:
        return ChunkOpener(self.form, self.schema, Tolerance.ALL, self.watch)

    def _why_alone(self, row: int, partition: int, offset: int, value: bytes | None) -> str:
        if self.watch.is_over(row):
            return NOT_LOOKED_AT
        try:
            opened = self._opened(row, partition, offset, value)
            _as_columns([opened], self._columns)
        except LaterError:
            return NOT_LOOKED_AT
        except (MisfitError, SchemaError) as error:
            return str(error)[:REASON_CHARACTERS_MAX]
        except _NOT_ARROW as error:
            return _no_column(error)
        return ""

    def _batch(self, first: int, batch: pa.RecordBatch) -> pa.Table:
        """The rows of a part of the chunk. `first`: the number of its first row."""
        kept: list[int] = []
        values: list[Any] = []
        size, cuts = 0, self._misfits.cuts
        for row, (partition, offset, value) in enumerate(_records(batch)):
            if partition in cuts:
                continue
            if self._is_begun and self.watch.is_over(first + row):
                cuts[partition] = Cut(offset)
                continue
            try:
                opened = self._opened(first + row, partition, offset, value)
            except LaterError:
                cuts[partition] = Cut(offset)
                continue
            except MisfitError as error:
                self._misfit(partition, offset, str(error))
            except SchemaError as error:
                self._misfits.add(partition, offset, str(error), is_tolerated=self.tolerance is Tolerance.ALL)
            else:
                kept.append(row)
                values.append(opened)
                size += len(value or b"")
            self._is_begun = True
        if self._columns is not self._table:
            return self.schema.empty_table()
        self.watch.begin(first if self.batch_rows == 1 else -1, size)
        return self._rows(batch, kept, values)

    def _misfit(self, partition: int, offset: int, reason: str) -> None:
        self._misfits.add(partition, offset, reason, is_tolerated=self.tolerance is not Tolerance.NONE)

    def _opened(self, row: int, partition: int, offset: int, value: bytes | None) -> Any:
        """The columns of a value. MisfitError, SchemaError if the table has no room for it."""
        if value is None:
            return {}
        if reason := self.watch.why_refused(partition, offset):
            raise MisfitError(reason)
        require_openable(value)
        self.watch.begin(row, len(value))
        shape, opened = self.form.open(value)
        if (known := self._room.get(id(shape))) is None:
            known = self._remember(self._make_room(shape))
        if known.why_not:
            raise (SchemaError if shape.is_declared else MisfitError)(f"{shape.name}: {known.why_not}")
        return opened if known.moves is None else moved(opened, known.moves)

    def _remember(self, room: _Room) -> _Room:
        self._room_parts += leaves(room.shape.columns)
        if self._room_parts > ROOM_PARTS_MAX:
            self._room.clear()
            self._room_parts = 0
        self._room[id(room.shape)] = room
        return room

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

    def _rows(self, batch: pa.RecordBatch, kept: list[int], values: list[Any]) -> pa.Table:
        try:
            opened = _as_columns(values, self._table)
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
            if partition in self._misfits.cuts and offset >= self._misfits.cuts[partition].offset:
                continue
            try:
                _as_columns([value], self._table)
            except _NOT_ARROW as error:
                self._misfit(partition, offset, _no_column(error))
            else:
                fitting.append((row, value))
        return [row for row, _ in fitting], [value for _, value in fitting]


NOT_LOOKED_AT = "the record did not fit when it was read; the reason was not looked for again"
_NOT_ARROW = (pa.ArrowException, ValueError, TypeError, OverflowError)


def _as_columns(values: Sequence[Any], columns: pa.StructType) -> pa.StructArray:
    """One of _NOT_ARROW if a value does not fit its column."""
    made = pa.array(values, columns)
    require_times(made)
    return made


def _portions(raw: pa.Table, rows_max: int | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Parts of the chunk, each with the number of its first row: of at most PORTION_BYTES, or one value."""
    first = 0
    for batch in raw.to_batches():
        sizes = pc.cumulative_sum(pc.fill_null(pc.binary_length(batch.column("value")), 0).cast(pa.int64())).to_numpy()
        start = 0
        while start < batch.num_rows:
            before = int(sizes[start - 1]) if start else 0
            end = max(start + 1, int(np.searchsorted(sizes, before + PORTION_BYTES, side="right")))
            end = min(end, batch.num_rows, start + (rows_max or batch.num_rows))
            yield first + start, batch.slice(start, end - start)
            start = end
        first += batch.num_rows


def _values(raw: pa.Table) -> Sequence[bytes | None]:
    found: list[bytes | None] = raw.column("value").to_pylist()
    return found


def _no_column(error: Exception) -> str:
    return f"the value does not fit its column: {str(error)[:200]}"


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
