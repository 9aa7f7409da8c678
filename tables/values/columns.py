"""The columns of a table with a schema, as Arrow types: names, collisions, and what widens them. Pure.

    shape:    what a schema, or a JSON value, would have as columns; every part of it can be null
    columns:  what the table has; the shape `kafka` is in front of them

Place: between the formats (avro.py, json_schema.py, inferred.py) and the table's schema, which pyiceberg changes.
Invariant: columns only change as Iceberg changes them without rewriting files: a new one that can be null, int to long,
float to double, a decimal with more digits. The types are those that pyiceberg makes of Iceberg's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.tables.errors import SchemaError
from headrace.tables.values.limits import require_short

KAFKA = "kafka"
"""The column with the rest of the record. A value's field of this name, in any case, is the column `kafka_value`."""
VALUE = "value"
"""The column of a value that is no record, for example an Avro string."""
COLUMNS_MAX = 1_000
"""Columns with values, nested ones counted: JSON with data in its names would add columns without an end."""
STRING, BINARY, BOOLEAN = pa.large_string(), pa.large_binary(), pa.bool_()
INT, LONG, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
DATE, TIMESTAMP, TIMESTAMPTZ = pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")
_OTHER = re.compile(r"\W")

Convert = Callable[[Any], Any]


class ColumnPlan(NamedTuple):
    """How a part of a value becomes a column. `type` None: it has no values but null. `convert` None: as it is."""

    type: pa.DataType | None
    convert: Convert | None = None


class ValueShape(NamedTuple):
    """The columns that a schema asks for, and what it is called in reasons.

    `is_declared`: a schema of others; False: it is what one JSON value looks like.
    """

    name: str
    columns: pa.StructType
    is_declared: bool = True


def column_name(source: str, *, is_top: bool = False) -> str:
    """Return a field's name as a column: letters, digits and _, not a digit first. SchemaError if it is too long."""
    require_short(source)
    name = _OTHER.sub("_", source)
    if not name or name[0].isdigit():
        name = f"_{name}"
    return f"{name}_{VALUE}" if is_top and name.lower() == KAFKA else name


def top_column_name(source: str) -> str:
    """Return the same for a field at the top of a value."""
    return column_name(source, is_top=True)


def struct_of(fields: Iterable[tuple[str, pa.DataType]]) -> pa.StructType:
    """A struct of these columns. SchemaError if two of them are one for engines that ignore the case of names."""
    named: dict[str, tuple[str, pa.DataType]] = {}
    for name, kind in fields:
        if (other := named.get(name.lower())) is not None:
            raise SchemaError(f"two fields have one column: {other[0]}, {name}")
        named[name.lower()] = name, kind
    return pa.struct(list(named.values()))


def top(plan: ColumnPlan) -> ColumnPlan:
    """The columns of a whole value: its fields, or the one column `value` if it is no struct."""
    if plan.type is None:
        return ColumnPlan(pa.struct([]), nothing)
    one = plan.convert
    if not pa.types.is_struct(plan.type):
        return ColumnPlan(pa.struct([(VALUE, plan.type)]), lambda value: {VALUE: value if one is None else one(value)})
    names = {field.name: column_name(field.name, is_top=True) for field in plan.type}
    if all(name == column for name, column in names.items()):
        return plan
    kind = struct_of((names[field.name], field.type) for field in plan.type)

    def renamed(value: Any) -> Any:
        fields = value if one is None else one(value)
        return {names.get(name, name): each for name, each in (fields or {}).items()}

    return ColumnPlan(kind, renamed)


def nothing(_: Any) -> dict[str, Any]:
    """Return no column: of values that can only be null or empty."""
    return {}


def list_of(element: pa.DataType) -> pa.DataType:
    """A list as pyiceberg has it."""
    return pa.large_list(pa.field("element", element))


def map_of(value: pa.DataType) -> pa.DataType:
    """A map with strings as keys, as pyiceberg has it."""
    return pa.map_(STRING, value)


def widened(have: pa.DataType, shape: pa.DataType, path: str = "", *, is_new: bool = False) -> pa.DataType:
    """The type that has room for both; `have` itself if it has. SchemaError if Iceberg cannot change to it.

    `is_new`: no table has `have` yet, so a long can become a double.
    """
    if have == shape or (have, shape) in ((LONG, INT), (DOUBLE, FLOAT), (DOUBLE, INT), (DOUBLE, LONG)):
        return have
    if (have, shape) in ((INT, LONG), (FLOAT, DOUBLE)) or (is_new and (have, shape) == (LONG, DOUBLE)):
        return shape
    if pa.types.is_struct(have) and pa.types.is_struct(shape):
        return widened_struct(have, shape, path, is_new=is_new)
    if pa.types.is_large_list(have) and pa.types.is_large_list(shape):
        return list_of(widened(have.value_type, shape.value_type, f"{path}.element", is_new=is_new))
    if pa.types.is_map(have) and pa.types.is_map(shape):
        return map_of(widened(have.item_type, shape.item_type, f"{path}.value", is_new=is_new))
    if pa.types.is_decimal(have) and pa.types.is_decimal(shape) and have.scale == shape.scale:
        return have if have.precision >= shape.precision else shape
    raise SchemaError(f"column {path} is {told(have)}, and the value has {told(shape)}")


def widened_struct(have: pa.StructType, shape: pa.StructType, path: str = "", *, is_new: bool = False) -> pa.StructType:
    """The same of the fields of two structs; new ones come last."""
    fields = {field.name: field for field in have}
    by_case = {name.lower(): name for name in fields}
    changed = False
    for new in shape:
        where = f"{path}.{new.name}" if path else new.name
        if (old := fields.get(new.name)) is not None:
            kind = widened(old.type, new.type, where, is_new=is_new)
            if kind is not old.type:
                fields[new.name], changed = old.with_type(kind), True
        elif (other := by_case.get(new.name.lower())) is not None:
            raise SchemaError(f"columns {where} and {other} differ only by case")
        else:
            fields[new.name], by_case[new.name.lower()], changed = new, new.name, True
    return pa.struct(list(fields.values())) if changed else have


def leaves(kind: pa.DataType) -> int:
    """Return how many columns with values a type has."""
    children = [kind.field(n).type for n in range(kind.num_fields)]
    return sum(map(leaves, children)) if children else 1


def told(kind: pa.DataType) -> str:
    """Return the type as Iceberg calls it, roughly: for reasons."""
    if pa.types.is_struct(kind):
        return "a struct"
    if pa.types.is_map(kind):
        return "a map"
    if pa.types.is_large_list(kind):
        return "a list"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_fixed_size_binary(kind):
        return f"fixed[{kind.byte_width}]"
    return _TOLD.get(kind, str(kind))


_TOLD = {
    STRING: "string", BINARY: "binary", BOOLEAN: "boolean", INT: "int", LONG: "long", FLOAT: "float",
    DOUBLE: "double", DATE: "date", TIMESTAMP: "timestamp", TIMESTAMPTZ: "timestamptz",
}  # fmt: skip
