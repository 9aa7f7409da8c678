"""JSON without a schema: what a value looks like are its columns.

| JSON | column |
| --- | --- |
| object, array | struct, list; at the top its members are columns |
| string, true and false | string, boolean |
| number | long without, double with a fraction or an exponent; double if both come before the column is made. A
fraction behind a long has a second column (fractions.py) |
| null, empty object, empty array | no column; null, or empty, in a column that other values made |

Place: a format of open.py.
Invariant: a value that does not fit the columns of the table is a dead letter: one record does not stop the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headrace.tables.errors import MisfitError, SchemaError
from headrace.tables.values import columns as c
from headrace.tables.values.columns import ValueShape
from headrace.tables.values.limits import PARTS_MAX

DEPTH_MAX = 32
PARTS_KEPT = 200_000
"""Parts of all shapes that are kept: about a hundred bytes each."""
_SCALARS: dict[type, pa.DataType] = {bool: c.BOOLEAN, int: c.LONG, float: c.DOUBLE, str: c.STRING}
_column = lru_cache(maxsize=10_000)(c.column_name)


def parse_json(value: bytes) -> Any:
    """The value of a JSON text. MisfitError."""
    try:
        return json.loads(value.decode(), parse_constant=_refuse, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise MisfitError(f"not a JSON value: {error}") from error


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        raise ValueError("an object has a member twice")
    return found


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class InferredJson:
    """Implements ValueFormat."""

    def __init__(self) -> None:
        self._shapes: dict[Any, ValueShape] = {}
        self._parts = 0

    def begin(self, values: Sequence[bytes | None] = ()) -> None:
        """Do nothing: what a value looks like is in the value."""

    def open(self, value: bytes) -> tuple[ValueShape, Any]:
        """MisfitError for what is no JSON, or has a list of several types."""
        parsed = parse_json(value)
        if not isinstance(parsed, dict):
            parsed = {c.VALUE: parsed}
        signature = _signature(parsed, 0)
        try:
            columns = _members(parsed, c.top_column_name)
            if (shape := self._shapes.get(signature)) is None:
                shape = self._kept(signature)
            return shape, columns
        except SchemaError as error:
            raise MisfitError(str(error)) from error

    def _kept(self, signature: Any) -> ValueShape:
        """Make the shape, and remember it. SchemaError."""
        parts = _parts_of(signature)
        if parts > PARTS_MAX:
            raise SchemaError(f"a JSON value has more than {PARTS_MAX} names")
        shape = ValueShape("a JSON value", c.top(c.ColumnPlan(_type(signature))).type, is_declared=False)
        if self._parts + parts > PARTS_KEPT:
            self._shapes.clear()
            self._parts = 0
        self._shapes[signature] = shape
        self._parts += parts
        return shape


def _signature(value: Any, depth: int) -> Any:
    """Return what decides the columns of a value, as something to look them up by."""
    if depth > DEPTH_MAX:
        raise MisfitError(f"a JSON value is nested deeper than {DEPTH_MAX}")
    if isinstance(value, dict):
        return tuple((name, _signature(each, depth + 1)) for name, each in value.items())
    if isinstance(value, list):
        return frozenset(_signature(each, depth + 1) for each in value)
    return None if value is None else type(value)


def _parts_of(signature: Any) -> int:
    if isinstance(signature, tuple):
        return 1 + sum(_parts_of(each) for _, each in signature)
    return 1 + sum(map(_parts_of, signature)) if isinstance(signature, frozenset) else 1


def _type(signature: Any) -> pa.DataType | None:
    if isinstance(signature, tuple):
        fields = [(_column(name), kind) for name, each in signature if (kind := _type(each)) is not None]
        return c.struct_of(fields) if fields else None
    if isinstance(signature, frozenset):
        kinds = [kind for each in signature if (kind := _type(each)) is not None]
        if not kinds:
            return None
        element = kinds[0]
        for kind in kinds[1:]:
            element = c.widened(element, kind, "element", is_new=True)
        return c.list_of(element)
    return None if signature is None else _SCALARS[signature]


def _columns(value: Any) -> Any:
    if isinstance(value, dict):
        return _members(value, _column)
    return [_columns(each) for each in value] if isinstance(value, list) else value


def _members(value: dict[str, Any], name_of: Callable[[str], str]) -> dict[str, Any]:
    """The members by column. MisfitError if two of them have one: also if a null would replace a value."""
    found: dict[str, Any] = {}
    named: dict[str, str] = {}
    for name, each in value.items():
        column = name_of(name)
        if (other := named.setdefault(column, name)) != name:
            raise MisfitError(f"two fields have one column: {other}, {name}")
        found[column] = _columns(each)
    return found
