"""Numbers with a fraction in a column of integers: they go to a second column.

    table: amount long      {"amount": 10}    -> amount 10
                            {"amount": 10.5}  -> amount_double 10.5, amount null

JSON does not say which numbers are integers: if the first values of a field have no fraction, it becomes a long, and
Iceberg does not widen a long to a double. So the table gets one more column when the first fraction comes, and no
record is refused. As all of an array is one column, `{"prices": [1, 2.5]}` is `prices_double`.

Place: between JSON without a schema (inferred.py) and the columns of the table, used by open.py. Pure.
Invariant: each value is in one of the two columns, as it came; which of them depends on the value and on the table's
columns alone, so all workers and tasks of Spark decide the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from headrace.tables.values import columns as c

SUFFIX = "_double"


class Moved(NamedTuple):
    """A shape with columns for its fractions, and how values get there; `moves` None: they stay where they are."""

    columns: pa.StructType
    moves: dict[str, Move] | None


class Move(NamedTuple):
    """What becomes of one field: the name of its column, and what moves inside of it."""

    name: str
    inside: dict[str, Move] | None = None


def with_fractions_apart(have: pa.StructType, shape: pa.StructType) -> Moved:
    """Return the shape for a table that has the columns `have`. SchemaError if the second column's name is another
    field of the value.
    """
    fields: list[tuple[str, pa.DataType]] = []
    moves: dict[str, Move] = {}
    for field in shape:
        at = have.get_field_index(field.name)
        kind, move = (field.type, None) if at < 0 else _moved(field.name, have.field(at).type, field.type)
        if move is not None:
            moves[field.name] = move
        fields.append((field.name if move is None else move.name, kind))
    return Moved(c.struct_of(fields), moves) if moves else Moved(shape, None)


def _moved(name: str, have: pa.DataType, kind: pa.DataType) -> tuple[pa.DataType, Move | None]:
    if _is_fraction_of(have, kind):
        return kind, Move(name + SUFFIX)
    lists = 0
    inner_have, inner = have, kind
    while pa.types.is_large_list(inner_have) and pa.types.is_large_list(inner):
        inner_have, inner, lists = inner_have.value_type, inner.value_type, lists + 1
    if pa.types.is_struct(inner_have) and pa.types.is_struct(inner):
        columns, inside = with_fractions_apart(inner_have, inner)
        if inside is not None:
            for _ in range(lists):
                columns = c.list_of(columns)
            return columns, Move(name, inside)
    return kind, None


def _is_fraction_of(have: pa.DataType, kind: pa.DataType) -> bool:
    while pa.types.is_large_list(have) and pa.types.is_large_list(kind):
        have, kind = have.value_type, kind.value_type
    return bool((have, kind) == (c.LONG, c.DOUBLE))


def moved(value: Any, moves: dict[str, Move]) -> Any:
    """Return the value with its fields where the moves say."""
    if isinstance(value, list):
        return [moved(each, moves) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: each for name, each in value.items() if name not in moves}
    for name, move in moves.items():  # last: a null of the second column's name does not replace what moves there
        if name in value:
            found[move.name] = value[name] if move.inside is None else moved(value[name], move.inside)
    return found
