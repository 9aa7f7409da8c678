"""Avro: a schema's columns, and how a value that fastavro read becomes them.

| Avro | column |
| --- | --- |
| record | struct; at the top its fields are columns |
| array, map, enum, fixed | list, map with strings as keys, string, fixed |
| null and one other type | that type; every column can be null |
| several types | a struct with a column per type, of which at most one is not null |
| a record inside itself | string with the value as JSON |
| decimal, date, timestamp-*, local-timestamp-* | decimal, date, timestamptz, timestamp |
| time-millis, time-micros, uuid | string: Spark's Iceberg has no type of a time, and not each reader a uuid |
| duration, and logical types that fastavro does not know | the type below |

Place: used by registry.py and formats.py. fastavro parses schemas and reads values.
Invariant: nothing of a value is left out.
"""

from __future__ import annotations

import datetime
import decimal
import io
import json
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
from fastavro.read import LOGICAL_READERS

from headrace.tables.errors import MisfitError, SchemaError
from headrace.tables.values import columns as c
from headrace.tables.values.avro_bounds import BoundedReads
from headrace.tables.values.columns import ColumnPlan, Convert, ValueShape
from headrace.tables.values.limits import FIXED_BYTES_MAX, PartCount, parsed_schema, require_decimal

_PRIMITIVES = {
    "boolean": c.BOOLEAN, "int": c.INT, "long": c.LONG, "float": c.FLOAT, "double": c.DOUBLE, "bytes": c.BINARY,
    "string": c.STRING,
}  # fmt: skip
_LOGICAL = {
    "date": c.DATE,
    "timestamp-millis": c.TIMESTAMPTZ,
    "timestamp-micros": c.TIMESTAMPTZ,
    "local-timestamp-millis": c.TIMESTAMP,
    "local-timestamp-micros": c.TIMESTAMP,
}
_AS_TEXT = ("time-millis", "time-micros", "uuid")
_Kind = str | type
"""Tells the types of a union apart by the values that fastavro returns."""


class AvroSchema:
    """A parsed schema. SchemaError for one that is no schema, or that asks for columns that no table has."""

    def __init__(self, name: str, text: str, named: dict[str, Any] | None = None) -> None:
        """`named`: the types of schemas that this one refers to."""
        self._named = {} if named is None else named
        count = PartCount()
        try:
            self._schema = fastavro.parse_schema(parsed_schema(text), named_schemas=self._named)
            self._plan = c.top(_plan(self._schema, _Around(self._named, (), count)))
            self._bounds = BoundedReads.of(self._schema, self._named)
        except SchemaError as error:
            raise SchemaError(f"{name}: {error}") from error
        except MemoryError:
            raise
        except Exception as error:  # of any kind: the text is a client's, and libraries take it apart
            raise SchemaError(f"{name}: not an Avro schema: {type(error).__name__}: {error}") from error
        assert self._plan.type is not None
        self.shape, self.parts = ValueShape(name, self._plan.type), count.parts

    def read(self, data: bytes) -> Any:
        """Return the columns of one value. MisfitError for bytes that the schema does not describe."""
        source = io.BytesIO(data)
        try:
            if self._bounds is not None:
                self._bounds.require(data)
            value = fastavro.schemaless_reader(source, self._schema, return_named_type=True)
        except MemoryError:
            raise
        except Exception as error:  # of any kind: the bytes are a client's
            raise MisfitError(f"not a value of {self.shape.name}: {type(error).__name__}: {error}") from error
        if source.tell() != len(data):
            raise MisfitError(f"not a value of {self.shape.name}: {len(data) - source.tell()} bytes are left")
        try:
            return (value if self._plan.convert is None else self._plan.convert(value)) or {}
        except (ValueError, TypeError, OverflowError, ArithmeticError, RecursionError) as error:
            raise MisfitError(f"not a value of {self.shape.name}: {error}") from error


class _Around(NamedTuple):
    """The named types, and the records around a part of a schema."""

    named: Mapping[str, Any]
    inside: tuple[str, ...]
    counted: PartCount


def _plan(schema: Any, around: _Around) -> ColumnPlan:
    with around.counted.part():
        return _part(schema, around)


def _part(schema: Any, around: _Around) -> ColumnPlan:
    if isinstance(schema, list):
        return _union(schema, around)
    if isinstance(schema, str):
        if schema == "null":
            return ColumnPlan(None)
        return ColumnPlan(_PRIMITIVES[schema]) if schema in _PRIMITIVES else _plan(around.named[schema], around)
    kind = schema["type"]
    if kind in ("record", "error"):
        return _record(schema, around)
    if kind == "enum":
        return ColumnPlan(c.STRING)
    if kind in ("array", "map"):
        return _collection(kind, _plan(schema["items" if kind == "array" else "values"], around))
    logical = schema.get("logicalType")
    if f"{kind}-{logical}" in LOGICAL_READERS:
        return _logical(logical, schema)
    if kind == "fixed":
        if not 0 <= schema["size"] <= FIXED_BYTES_MAX:
            raise SchemaError(f"a fixed of {schema['size']} bytes: at most {FIXED_BYTES_MAX}")
        return ColumnPlan(pa.binary(schema["size"]))
    return _plan(kind, around)


def _record(schema: Any, around: _Around) -> ColumnPlan:
    if schema["name"] in around.inside:
        return ColumnPlan(c.STRING, _json_text)
    is_top, around = not around.inside, around._replace(inside=(*around.inside, schema["name"]))
    found = [(field["name"], _plan(field["type"], around)) for field in schema["fields"]]
    kept = [(name, c.column_name(name), plan) for name, plan in found if plan.type is not None]
    if not kept:
        return ColumnPlan(pa.struct([]) if is_top else None, c.nothing)
    kind = c.struct_of((column, plan.type) for _, column, plan in kept)
    if len(kept) == len(found) and all(name == column and plan.convert is None for name, column, plan in kept):
        return ColumnPlan(kind)
    parts = [(name, column, plan.convert) for name, column, plan in kept]
    return ColumnPlan(kind, partial(_fields, parts))


def _fields(parts: list[tuple[str, str, Convert | None]], value: Any) -> Any:
    return {
        column: part if convert is None or part is None else convert(part)
        for name, column, convert in parts
        for part in (value[name],)
    }


def _collection(kind: str, plan: ColumnPlan) -> ColumnPlan:
    if plan.type is None:
        return ColumnPlan(None)
    convert = plan.convert
    if kind == "array":
        of_list = None if convert is None else lambda value: [x if x is None else convert(x) for x in value]
        return ColumnPlan(c.list_of(plan.type), of_list)
    of_map = (
        (lambda value: list(value.items()))
        if convert is None
        else lambda value: [(k, x if x is None else convert(x)) for k, x in value.items()]
    )
    return ColumnPlan(c.map_of(plan.type), of_map)


def _logical(logical: str, schema: Any) -> ColumnPlan:
    if logical == "decimal":
        precision, scale = schema["precision"], schema.get("scale", 0)
        require_decimal(precision, scale)
        return ColumnPlan(pa.decimal128(precision, scale), partial(_decimal, -scale))
    return ColumnPlan(c.STRING, _text) if logical in _AS_TEXT else ColumnPlan(_LOGICAL[logical])


def _decimal(exponent: int, value: decimal.Decimal) -> decimal.Decimal:
    if value.as_tuple().exponent != exponent:  # fastavro rounds, then
        raise ValueError("a decimal has more digits than its precision")
    return value


def _text(value: Any) -> str:
    return value.isoformat(timespec="microseconds") if isinstance(value, datetime.time) else str(value)


class _Branch(NamedTuple):
    column: str
    plan: ColumnPlan


def _union(schema: list[Any], around: _Around) -> ColumnPlan:
    branches: dict[_Kind, _Branch] = {}
    for each in schema:
        plan = _plan(each, around)
        if plan.type is None:
            continue
        kind, name = _kind_of(each, plan)
        before = branches.get(kind)
        if before is not None:  # int and long, float and double, two units of a time: Python has one type
            plan = before.plan if c.widened(before.plan.type, plan.type) is before.plan.type else plan
            name = before.column if plan is before.plan else name
        branches[kind] = _Branch(name, plan)
    if not branches:
        return ColumnPlan(None)
    if len(branches) == 1:
        (one,) = branches.values()
        return ColumnPlan(one.plan.type, partial(_unnamed, one.plan.convert))
    kind = c.struct_of((branch.column, branch.plan.type) for branch in branches.values())
    return ColumnPlan(kind, partial(_choose, branches))


def _kind_of(schema: Any, plan: ColumnPlan) -> tuple[_Kind, str]:
    """Return how values of this part of a union are recognised, and its column's name."""
    name = schema if isinstance(schema, str) else schema.get("name", schema["type"])
    if (isinstance(schema, str) and schema not in _PRIMITIVES) or (not isinstance(schema, str) and "name" in schema):
        return name, c.column_name(name.rpartition(".")[2])
    logical = None if isinstance(schema, str) else schema.get("logicalType")
    if f"{name}-{logical}" not in LOGICAL_READERS:
        logical = None
    column = c.column_name(name if plan.type in _PRIMITIVES.values() and logical not in _AS_TEXT else logical or name)
    if plan.type in (c.STRING, c.DATE, c.TIMESTAMP, c.TIMESTAMPTZ) and logical is not None:
        return logical.rpartition("-")[0] or logical, column
    if pa.types.is_decimal(plan.type):
        return decimal.Decimal, column
    return _PYTHON[name], column


_PYTHON: dict[str, type] = {
    "boolean": bool, "int": int, "long": int, "float": float, "double": float, "bytes": bytes, "string": str,
    "array": list, "map": dict,
}  # fmt: skip


def _kind_of_value(value: Any) -> _Kind:
    if isinstance(value, datetime.datetime):
        return "timestamp" if value.tzinfo is not None else "local-timestamp"
    if isinstance(value, datetime.date):
        return "date"
    if isinstance(value, datetime.time):
        return "time"
    return "uuid" if isinstance(value, uuid.UUID) else type(value)


def _choose(branches: Mapping[_Kind, _Branch], value: Any) -> Any:
    """The columns of a union with several types. A named type's value comes as a tuple with its name."""
    if value is None:
        return None
    kind, value = value if isinstance(value, tuple) else (_kind_of_value(value), value)
    column, plan = branches[kind]
    return {column: value if plan.convert is None else plan.convert(value)}


def _unnamed(convert: Convert | None, value: Any) -> Any:
    value = value[1] if isinstance(value, tuple) else value
    return value if convert is None or value is None else convert(value)


def _json_text(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """The value with types that JSON has: bytes as hexadecimal digits, decimals, times and UUIDs as text."""
    if isinstance(value, tuple):
        return _plain(value[1])
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value) if isinstance(value, (decimal.Decimal, uuid.UUID)) else value
