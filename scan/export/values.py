"""JSON values as typed columns: a schema inferred from a sample, then applied to every value.

Place: between a chunk's rows and its Parquet files; the schema is inferred once per export, before its first file.

    kind of the sample's values                 column
    true, false                                 boolean
    integers                                    int64, or decimal(38) if one does not fit into 64 bits
    integers and numbers with a fraction        double, if it has each of the integers exactly
    strings                                     string
    objects, arrays                             struct, list
    several kinds, only null, {} or nothing     JSON text: a string column with the metadata of JSON_TEXT

Invariant of the inferred columns: each value of the sample has a column that can hold it without loss.
Invariant: each value is parsed by itself, so the row of an offset has this record's value and no other; no number is
rounded to fit a column. A value that does not fit is an error that names its offset, and nothing of its chunk counts
as exported. The schema is inferred once and kept in the export's state, so all files have the same.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.scan.errors import OptionError

JSON_TEXT = {b"headrace.json": b"text"}
"""The metadata of a string column with JSON texts."""
DECIMAL_DIGITS = 38
INT64_END = 1 << 63


@dataclass(slots=True)
class SampleShape:
    """What a sample has at one place of its values. Null is no kind: every column can be null."""

    kinds: set[type] = field(default_factory=set)
    int64: bool = True
    decimal: bool = True
    double: bool = True
    """Whether such a column has each integer exactly."""
    fields: dict[str, SampleShape] = field(default_factory=dict)
    items: SampleShape | None = None

    def add(self, value: object) -> None:
        """Take a parsed value into account."""
        if value is None:
            return
        self.kinds.add(type(value))
        if type(value) is int:
            self.int64 &= -INT64_END <= value < INT64_END
            self.decimal &= abs(value) < 10**DECIMAL_DIGITS
            self.double &= is_exact(value)
        elif isinstance(value, dict):
            for name, inner in value.items():
                self.fields.setdefault(name, SampleShape()).add(inner)
        elif isinstance(value, list):
            self.items = self.items or SampleShape()
            for inner in value:
                self.items.add(inner)

    def column(self, name: str) -> pa.Field:
        """The column that holds all of it."""
        found = self._type()
        return pa.field(name, pa.string(), metadata=JSON_TEXT) if found is None else pa.field(name, found)

    def _type(self) -> pa.DataType | None:
        """Return None if only JSON text holds it."""
        if self.kinds == {bool}:
            return pa.bool_()
        if self.kinds == {str}:
            return pa.string()
        if self.kinds == {int}:
            return pa.int64() if self.int64 else pa.decimal128(DECIMAL_DIGITS, 0) if self.decimal else None
        if self.kinds in ({float}, {int, float}):
            return pa.float64() if self.double else None
        if self.kinds == {list} and self.items is not None:
            return pa.list_(self.items.column("item"))
        if self.kinds == {dict} and self.fields:
            return pa.struct(columns(self))
        return None


def columns(shape: SampleShape) -> list[pa.Field]:
    """The columns of an object's fields, in the order in which the sample has them."""
    return [inner.column(name) for name, inner in shape.fields.items()]


def shape_of(values: Iterable[object]) -> SampleShape:
    """The shape of parsed values."""
    shape = SampleShape()
    for value in values:
        shape.add(value)
    return shape


def is_exact(value: int) -> bool:
    """Return whether a double has this integer."""
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


SAMPLE = 10_000
"""Values from which the schema is inferred, at most."""
Fit = Callable[[Any], object]
"""The value as Arrow takes it into a column; _Misfit if it is no value of this column."""


class _Misfit(ValueError):
    """A value is not what its column has; found here, reported as an OptionError with topic, partition and offset."""


def infer_schema(rows: pa.Table) -> pa.Schema | None:
    """The schema of the objects in `value`, None if no object has a field. OptionError if one is none."""
    parsed = []
    for number, value in enumerate(rows.column("value").to_pylist()):
        if value is not None:
            parsed.append(_row(rows, number, "is not a JSON object", parse_object, value))
            if len(parsed) == SAMPLE:
                break
    return pa.schema(columns(shape_of(parsed))) if any(parsed) else None


def with_values(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with a struct of `schema` as `value`; null where the value is null. OptionError names a misfit."""
    type_ = pa.struct(list(schema))
    fit = _fit(pa.field("value", type_))

    def fitted(value: bytes) -> object:
        return fit(parse_object(value))

    made = [
        None if value is None else _row(rows, number, _MISFIT, fitted, value)
        for number, value in enumerate(rows.column("value").to_pylist())
    ]
    return rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(made, type_))


_MISFIT = "does not fit the inferred schema"


def _row(rows: pa.Table, number: int, what: str, make: Callable[[bytes], object], value: bytes) -> object:
    try:
        return make(value)
    except (ValueError, RecursionError) as error:
        where = " ".join(f"{name}={rows.column(name)[number].as_py()}" for name in ("topic", "partition", "offset"))
        raise OptionError(f"a value {what}: {where}: {error}") from error


def schema_text(schema: pa.Schema) -> str:
    """Return the schema as text for the state."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_of(text: str) -> pa.Schema:
    """Return what `schema_text` made."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def parse_object(value: bytes) -> dict[str, object]:
    """The one JSON object that a value is. ValueError, RecursionError if it is none, or would lose something."""
    text = value.decode()
    parsed = json.loads(text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_no_constant)
    if not isinstance(parsed, dict):
        raise ValueError("not a JSON object")
    if "\\u" in text:
        json_text(parsed).encode()  # half of a surrogate pair is no character
    return parsed


def json_text(value: object) -> str:
    """The shortest JSON text of a parsed value."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a field is there twice")
    return made


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"out of range: {text}")
    return number


def _no_constant(text: str) -> object:
    raise ValueError(f"not JSON: {text}")


def _fit(column: pa.Field) -> Fit:
    """The conversion for a column, so that each value takes few steps."""
    inner = _fit_value(column)

    def fit(value: object) -> object:
        if value is None:
            return None
        try:
            return inner(value)
        except _Misfit as error:
            raise _Misfit(f"{column.name}: {error}") from None

    return fit


def _fit_value(column: pa.Field) -> Fit:
    if (column.metadata or {}).items() >= JSON_TEXT.items():
        return json_text
    type_ = column.type
    if pa.types.is_struct(type_):
        return _fit_struct(type_)
    if pa.types.is_list(type_):
        return _fit_list(type_)
    if pa.types.is_timestamp(type_):  # only in schemas that releases before 0.2 inferred
        return lambda value: _timestamp(value, type_)
    return lambda value: _scalar(value, type_)


def _fit_struct(type_: pa.StructType) -> Fit:
    fits = {column.name: _fit(column) for column in type_}

    def fit(value: object) -> object:
        if not isinstance(value, dict):
            raise _Misfit(f"{json_text(value)} is not a JSON object")
        if unknown := value.keys() - fits.keys():
            raise _Misfit(f"unknown fields: {', '.join(sorted(unknown))}")
        return {name: fits[name](inner) for name, inner in value.items()}

    return fit


def _fit_list(type_: pa.ListType) -> Fit:
    item = _fit(type_.value_field)

    def fit(value: object) -> object:
        if not isinstance(value, list):
            raise _Misfit(f"{json_text(value)} is not an array")
        return [item(inner) for inner in value]

    return fit


def _scalar(value: Any, type_: pa.DataType) -> object:
    """The value as Arrow takes it: bool, int, float or str."""
    kind = type(value)
    if pa.types.is_boolean(type_):
        fits = kind is bool
    elif pa.types.is_string(type_):
        fits = kind is str
    elif pa.types.is_int64(type_):
        fits = kind is int and -INT64_END <= value < INT64_END
    elif pa.types.is_decimal(type_):
        fits = kind is int and abs(value) < 10**DECIMAL_DIGITS
    elif pa.types.is_float64(type_):
        fits = kind is float or (kind is int and is_exact(value))
    else:
        fits = False
    if not fits:
        raise _Misfit(f"{json_text(value)} is no {type_}")
    return float(value) if pa.types.is_float64(type_) else value  # Arrow takes no integer above 2^53 there


def _timestamp(value: Any, type_: pa.DataType) -> object:
    try:
        return pa.scalar(value, pa.string()).cast(type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise _Misfit(str(error)) from error
