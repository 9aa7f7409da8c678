"""The columns of JSON values, inferred from a sample. Pure.

    kind of the sample's values                 column
    true, false                                 boolean
    integers                                    int64, or decimal(38) if one does not fit into 64 bits
    integers and numbers with a fraction        double, if it has each of the integers exactly
    strings                                     string
    objects, arrays                             struct, list
    several kinds, only null, {} or nothing     JSON text: a string column with the metadata of JSON_TEXT

Place: once per export, before its first file.
Invariant: each value of the sample has a column that can hold it without loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

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
