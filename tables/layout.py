"""The layout of a table: the key of its rows, what it is partitioned by. Pure.

Place: used when a table is created (catalog.py), when it gets columns (commit/appending.py), when records are opened
(keyed/opener.py), and when files are merged. A table is partitioned by the record's time, its partition, or columns
of the value by Iceberg's transforms; a key is the record's key, or columns of its value.

    "day", "bucket[16](customer)" -> terms -> the table's schema -> a partition spec, and terms without a column yet

Invariant of the partitioning: a term is in the spec from the commit that adds its column on, so every row with a
value there has the partition of that value; pyiceberg writes the files. What pyiceberg cannot separate correctly is
refused: NaN is not equal to itself, so rows with it would be in no file of a table that is partitioned by a float;
and it writes no file of a table with two partition fields of one column.

    definition -> paths of the key's columns -> one comparable value per row
                                             -> identifier fields and the bucket that a table is partitioned by

Invariant of keys: two rows have equal joined keys only if each of their key columns is equal. All rows of a key have
one bucket, so a file with another bucket has no row of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, Transform, parse_transform
from pyiceberg.types import DoubleType, FloatType, IcebergType, NestedField, PrimitiveType, StructType

from headrace.config.table_configs import BINARY, LAYOUTS, RECORD_KEY, layout_parts, why_no_layout
from headrace.scan.errors import OptionError
from headrace.tables.state import Definition
from headrace.tables.values.columns import KAFKA

_FIRST_FIELD_ID = 1_000


class LayoutTerm(NamedTuple):
    """One thing that a table is partitioned by. `column`: its path, with dots."""

    text: str
    transform: Transform[Any, Any]
    column: str
    name: str
    """The name of the partition field."""


class Layout(NamedTuple):
    """The spec for a schema, and the terms for which the schema has no column yet."""

    spec: PartitionSpec
    waiting: tuple[LayoutTerm, ...]


def terms_of(texts: Iterable[str], *, is_valued: bool) -> list[LayoutTerm]:
    """OptionError for a text that is no term."""
    return [_term(text, is_valued=is_valued) for text in dict.fromkeys(texts)]


def _term(text: str, *, is_valued: bool) -> LayoutTerm:
    if reason := why_no_layout(text):
        raise OptionError(f"cannot partition by {text}: {reason}")
    if text in LAYOUTS:
        name, column = ("timestamp_day", "timestamp") if text == "day" else (text, text)
        transform: Transform[Any, Any] = DayTransform() if text == "day" else IdentityTransform()
        return LayoutTerm(text, transform, f"{KAFKA}.{column}" if is_valued else column, name)
    how, column = layout_parts(text)
    name = column.replace(".", "_")
    if how != "identity":
        name = f"{name}_{how.replace('truncate', 'trunc').replace('[', '_').rstrip(']')}"
    return LayoutTerm(text, parse_transform(how), column, name)


def layout_of(terms: Sequence[LayoutTerm], schema: Schema) -> Layout:
    """OptionError if a column has a type that its transform does not take, or if two partition fields were one."""
    fields: dict[str, PartitionField] = {}
    waiting = []
    for term in terms:
        field = _field(term, schema)
        if field is None:
            waiting.append(term)
            continue
        kind, is_identity = field.field_type, isinstance(term.transform, IdentityTransform)
        if not term.transform.can_transform(kind) or (is_identity and isinstance(kind, (FloatType, DoubleType))):
            raise OptionError(f"cannot partition by {term.text}: column {term.column} is {_told(field)}")
        same_name = next((each for each in schema.fields if each.name == term.name), None)
        if same_name is not None and not (is_identity and same_name.field_id == field.field_id):
            raise OptionError(f"cannot partition by {term.text}: another column has the name {term.name}")
        made = PartitionField(field.field_id, _FIRST_FIELD_ID + len(fields), term.transform, term.name)
        if any(each.source_id == made.source_id for each in fields.values()):
            raise OptionError(f"cannot partition by {term.text}: a column can only be used once: {term.column}")
        if term.name in fields:
            raise OptionError(f"cannot partition by {term.text}: another partition field has the name {term.name}")
        fields[term.name] = made
    return Layout(PartitionSpec(*fields.values()), tuple(waiting))


def _field(term: LayoutTerm, schema: Schema) -> NestedField | None:
    """The column; None if there is none. OptionError if it is inside a list or a map."""
    kind: Any = schema.as_struct()
    field = None
    for part in term.column.split("."):
        if not isinstance(kind, StructType):
            raise OptionError(f"cannot partition by {term.text}: {part} is inside of {kind}")
        field = next((each for each in kind.fields if each.name == part), None)
        if field is None:
            return None
        kind = field.field_type
    return field


def _told(field: NestedField) -> str:
    return str(field.field_type) if field.field_type.is_primitive else type(field.field_type).__name__.lower()[:-4]


BUCKETS = 16
"""How many buckets a keyed table is partitioned by if its creator says nothing."""
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string,
          pa.types.is_fixed_size_binary)  # fmt: skip


def key_paths(definition: Definition) -> tuple[str, ...]:
    """Return the columns that make a key, with dots; empty for a table without keys."""
    if not definition.is_keyed:
        return ()
    own = RECORD_KEY if definition.value_format == BINARY else f"{KAFKA}.{RECORD_KEY}"
    return tuple(own if each == RECORD_KEY else each for each in definition.key_columns or (RECORD_KEY,))


def column_at(rows: pa.Table, path: str) -> pa.ChunkedArray:
    """Return the column at a path: `kafka.key` is a field of the struct `kafka`."""
    first, *rest = path.split(".")
    column = rows.column(first)
    return pc.struct_field(column, rest) if rest else column


def joined_keys(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Return one large binary per row; null if one of the columns is null there."""
    if len(columns) == 1 and any(is_kind(columns[0].type) for is_kind in _BYTES):
        return columns[0].cast(pa.large_binary())
    parts = []
    for each in columns:
        text = _as_bytes(each)
        parts += [pc.binary_length(text).cast(pa.string()).cast(pa.large_binary()), text]
    return pc.binary_join_element_wise(*parts, pa.scalar(b":", pa.large_binary()), null_handling="emit_null")


def _as_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Bytes for each value: equal for equal values only."""
    kind = column.type
    if any(is_kind(kind) for is_kind in _BYTES):
        return column.cast(pa.large_binary())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    return column.cast(pa.string()).cast(pa.large_binary())


def keyed_layout(layout: Sequence[str], paths: Sequence[str], *, is_valued: bool) -> tuple[str, ...]:
    """Return what a keyed table is partitioned by: with a bucket of the key. OptionError if the key's first column is
    used in another way.
    """
    first = paths[0]
    for term in terms_of(layout, is_valued=is_valued):
        if term.column == first and isinstance(term.transform, BucketTransform):
            return tuple(layout)
        if term.column == first:
            raise OptionError(f"a table with keys is partitioned by bucket[N]({first}), not by {term.text}")
    return (*layout, f"bucket[{BUCKETS}]({first})")


def keyed_schema(schema: Schema, paths: Sequence[str]) -> Schema:
    """The schema with the key's columns as identifier fields, which are never null. OptionError for a column that
    cannot be one: it is missing, nested or a type without equality (float, double).
    """
    fields, ids = list(schema.fields), []
    for path in paths:
        fields, field_id = _with_required(fields, path.split("."), path)
        ids.append(field_id)
    try:
        return Schema(*fields, identifier_field_ids=ids)
    except ValueError as error:
        raise OptionError(f"cannot be a key: {', '.join(paths)}: {error}") from error


def _with_required(fields: Sequence[NestedField], path: Sequence[str], whole: str) -> tuple[list[NestedField], int]:
    found = next((n for n, each in enumerate(fields) if each.name == path[0]), None)
    if found is None:
        raise OptionError(f"cannot be a key: the table has no column {whole}")
    old, made = fields[found], list(fields)
    kind, field_id = old.field_type, old.field_id
    if len(path) > 1:
        assert isinstance(kind, StructType), f"{whole} is a field of a struct"
        inner, field_id = _with_required(kind.fields, path[1:], whole)
        kind = StructType(*inner)
    elif reason := why_no_key(kind):
        raise OptionError(f"cannot be a key: column {whole} is {reason}")
    made[found] = NestedField(old.field_id, old.name, kind, required=True)
    return made, field_id


def why_no_key(kind: IcebergType) -> str:
    """Return why a column of this type cannot be a key; empty: it can."""
    if isinstance(kind, PrimitiveType) and BucketTransform(1).can_transform(kind):
        return ""
    return str(kind) if isinstance(kind, PrimitiveType) else type(kind).__name__.lower().removesuffix("type")
