"""Opens the records of a chunk for a keyed table: changes, unfit records, where a partition has to wait.

Place: between the raw rows of a scan and merging.py, in the driver and in tasks of Spark. tables/worker.py and tasks
of Spark also take from here what opens the records of any table.

    raw rows -> delete markers                                    -> changes that delete
             -> values -> columns (values/open.py) -> their keys  -> changes that put a row

Invariant: each record is one change, or is in `dead`, or is at or behind its partition's cut. A record does not fit
if its key cannot be read: no key, a key column that is null, a delete marker if the key is in the value.
Invariant of the choice: driver, tasks and the local worker open by the same rules: the table's definition and its
schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from headrace.config.table_configs import BINARY, RECORD_KEY
from headrace.tables.keyed.merging import PLACE, changes_of
from headrace.tables.layout import column_at, joined_keys, key_paths
from headrace.tables.state import Definition, OffsetGap, ranges_of
from headrace.tables.values.columns import KAFKA
from headrace.tables.values.formats import ValueFormats
from headrace.tables.values.open import DEAD_RANGES_MAX, Cut, Tolerance, ValueOpener, kafka_struct

NO_COLUMNS = pa.struct([])
_NO_KEYS = pa.chunked_array([], pa.large_binary())


class OpenedChanges(NamedTuple):
    """What became of a chunk, as OpenedChunk: `changes` instead of rows, none if the table lacks columns."""

    columns: pa.StructType
    changes: pa.Table
    dead: tuple[OffsetGap, ...]
    cuts: dict[int, Cut]


@dataclass(frozen=True, slots=True)
class KeyedOpener:
    """Opens one chunk for a table with this schema, as pyiceberg has it in Arrow. `values` None: it has no columns of
    values. `paths`: the columns of the key.
    """

    schema: pa.Schema
    paths: tuple[str, ...]
    tolerance: Tolerance
    values: ValueOpener | None

    @classmethod
    def of(cls, definition: Definition, schema: pa.Schema, values: ValueOpener | None) -> KeyedOpener:
        """Make one for a table."""
        assert (values is None) == (definition.value_format == BINARY), "values are opened if they are columns"
        return cls(schema, key_paths(definition), Tolerance(definition.tolerance), values)

    @property
    def columns(self) -> pa.StructType:
        """The columns that the table has, but for `kafka`."""
        return NO_COLUMNS if self.values is None else self.values.columns

    @property
    def _is_by_record(self) -> bool:
        """Whether the record's key alone is the key, so that a delete marker says which row goes."""
        return self.paths in ((RECORD_KEY,), (f"{KAFKA}.{RECORD_KEY}",))

    def open(self, raw: pa.Table) -> OpenedChanges:
        """UnavailableError: the format's registry does not answer."""
        has_key = _is_set(raw, "key") if self._needs_record_key else np.ones(len(raw), bool)
        is_put = _is_set(raw, "value")
        if not self._is_by_record:
            has_key &= is_put
        markers = self._markers(raw.filter(pa.array(has_key & ~is_put)))
        puts = raw.filter(pa.array(has_key & is_put))
        dead, cuts = _places(raw.filter(pa.array(~has_key))), dict[int, Cut]()
        columns = self.columns
        if self.values is not None:
            opened = self.values.open(puts)
            columns, rows, cuts = opened.columns, opened.rows, opened.cuts
            if columns != self.columns:
                return OpenedChanges(columns, markers.slice(0, 0), (), cuts)
            is_known = self._is_known(rows)
            dead += [(g.partition, offset) for g in opened.dead for offset in range(g.start, g.end)]
            dead += _places(_kafka_of(rows.filter(pa.array(~is_known))))
            changes = self._changes(rows.filter(pa.array(is_known)))
        else:
            changes = self._changes(puts.cast(self.schema))
        return self._judged(columns, pa.concat_tables([markers, changes]), sorted(dead), cuts)

    @property
    def _needs_record_key(self) -> bool:
        return any(path in (RECORD_KEY, f"{KAFKA}.{RECORD_KEY}") for path in self.paths)

    def reasons(self, raw: pa.Table) -> list[str]:
        """Return why each of these records does not fit; empty: it would by now."""
        found = ["" for _ in range(len(raw))] if self.values is None else self.values.reasons(raw)
        keys, values = raw.column("key").to_pylist(), raw.column("value").to_pylist()
        for row, (key, value) in enumerate(zip(keys, values, strict=True)):
            if key is None and self._needs_record_key:
                found[row] = "the record has no key"
            elif value is None and not self._is_by_record:
                found[row] = f"a null value has no key columns: {', '.join(self.paths)}"
            elif not found[row] and self.values is not None and self._lacks_key_columns(raw.slice(row, 1)):
                found[row] = f"a key column is null: {', '.join(self.paths)}"
        return found

    def _lacks_key_columns(self, raw: pa.Table) -> bool:
        if self._is_by_record:
            return False
        assert self.values is not None, "key columns are of values"
        rows = self.values.tolerant().open(raw).rows
        return not self._is_known(rows).all()

    def _is_known(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return which rows have each key column."""
        known = np.ones(len(rows), bool)
        for path in self.paths:
            if path.split(".")[0] not in rows.column_names:
                return np.zeros(len(rows), bool)
            known &= column_at(rows, path).is_valid().to_numpy()
        return known

    def _changes(self, rows: pa.Table) -> pa.Table:
        """Changes that put these rows; each has a key."""
        return changes_of(self._place(rows, deletes=False), rows)

    def _place(self, rows: pa.Table, *, deletes: bool) -> pa.Table:
        log = _kafka_of(rows)
        has_columns = all(path.split(".")[0] in rows.column_names for path in self.paths)
        assert has_columns or not len(rows), "a record without its key's columns does not fit"
        columns = [
            joined_keys([column_at(rows, path) for path in self.paths]) if has_columns else _NO_KEYS,
            log.column("partition"),
            log.column("offset"),
            log.column("timestamp").cast(pa.int64()),
            pa.chunked_array([pa.repeat(pa.scalar(deletes), len(rows))]),
        ]
        return pa.Table.from_arrays(columns, schema=PLACE)

    def _markers(self, raw: pa.Table) -> pa.Table:
        """Changes that delete."""
        if self.values is None:
            rows = raw.cast(self.schema)
        else:
            raw = raw.combine_chunks()
            batches = raw.to_batches() or [pa.RecordBatch.from_pylist([], schema=raw.schema)]
            parts = [kafka_struct(batch, self.schema.field(KAFKA).type) for batch in batches]
            nulls = {each.name: pa.nulls(len(raw), each.type) for each in self.schema if each.name != KAFKA}
            columns = nulls | {KAFKA: pa.chunked_array(parts)}
            rows = pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
        return changes_of(self._place(rows, deletes=True), rows)

    def _judged(
        self, columns: pa.StructType, changes: pa.Table, dead: Sequence[tuple[int, int]], cuts: Mapping[int, Cut]
    ) -> OpenedChanges:
        """Apply what the table tolerates to the records without a key, and the limit of ranges."""
        found = dict(cuts)
        if self.tolerance is Tolerance.NONE:
            for partition, offset in reversed(dead):
                if partition not in found or offset < found[partition].offset:
                    found[partition] = Cut(offset, f"partition {partition}, offset {offset}: its key cannot be read")
        ranges = ranges_of((p, offset) for p, offset in dead if _is_before(found, p, offset))
        for each in ranges[DEAD_RANGES_MAX:]:
            if each.partition not in found or each.start < found[each.partition].offset:
                found[each.partition] = Cut(each.start)
        kept = [each for each in ranges[:DEAD_RANGES_MAX] if _is_before(found, each.partition, each.start)]
        for partition, cut in found.items():
            is_before = pc.or_(pc.not_equal(changes["#partition"], partition), pc.less(changes["#offset"], cut.offset))
            changes = changes.filter(is_before)
        return OpenedChanges(columns, changes, tuple(kept), found)


def _is_before(cuts: Mapping[int, Cut], partition: int, offset: int) -> bool:
    return partition not in cuts or offset < cuts[partition].offset


def _is_set(raw: pa.Table, name: str) -> NDArray[np.bool_]:
    is_set: NDArray[np.bool_] = raw.column(name).is_valid().to_numpy()
    return is_set


def _places(raw: pa.Table) -> list[tuple[int, int]]:
    """Partition and offset of each record."""
    return list(zip(raw.column("partition").to_pylist(), raw.column("offset").to_pylist(), strict=True))


def _kafka_of(rows: pa.Table) -> pa.Table:
    """The columns of the records, of rows with or without columns of values."""
    if KAFKA not in rows.column_names:
        return rows
    names = ("key", "timestamp", "partition", "offset")
    return pa.table({name: column_at(rows, f"{KAFKA}.{name}") for name in names})


def value_opener(definition: Definition, schema: Schema, formats: ValueFormats) -> ValueOpener | None:
    """Return what opens values; None for a table without a schema. OptionError, SchemaError if it cannot be used."""
    if definition.value_format == BINARY:
        return None
    columns = schema_to_pyarrow(schema, include_field_ids=False)
    return formats.opener(definition, columns)


def keyed_opener(definition: Definition, schema: Schema, formats: ValueFormats) -> KeyedOpener:
    """Return what opens records for a table with a row per key. Errors as value_opener."""
    columns = schema_to_pyarrow(schema, include_field_ids=False)
    return KeyedOpener.of(definition, columns, value_opener(definition, schema, formats))
