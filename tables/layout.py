"""What a table is partitioned by: the record's time, its partition, and columns of the value by Iceberg's transforms.

    "day", "bucket[16](customer)" -> terms -> the table's schema -> a partition spec, and terms without a column yet

Place: used when a table is created (catalog.py), and when it gets columns (appending.py). Pure.
Invariant: a term is in the spec from the commit that adds its column on, so every row with a value there has the
partition of that value; pyiceberg writes the files. What pyiceberg cannot separate correctly is refused: NaN is not
equal to itself, so rows with it would be in no file of a table that is partitioned by a float; and it writes no file
of a table with two partition fields of one column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform, Transform, parse_transform
from pyiceberg.types import DoubleType, FloatType, NestedField, StructType

from headrace.config.table_configs import LAYOUTS, layout_parts, why_no_layout
from headrace.scan.errors import OptionError
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
