"""Turns rows of one Iceberg schema into rows of another, as Arrow: columns are the same if they have the same field id.

    rows of a data file -> the columns of the table's newest schema      (read)
    rows of the table   -> the columns of a data file, with field ids    (write)

Place: under data_files.py. Pure.
Invariant: a value stays what it is, and null stays null: a null list, map or struct does not become an empty one, at
any depth and in any slice. pyiceberg's own projection (0.12) drops the nulls of lists and maps of structs, when it
writes and when it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from headrace.tables.errors import TableError


def projected(
    batch: pa.RecordBatch, have: Schema, want: Schema, target: pa.Schema, constants: Mapping[int, Any] | None = None
) -> pa.RecordBatch:
    """Return the batch with the columns of `want`, which are `target` in Arrow. `have`: the schema of the batch,
    with columns in the same order. `constants`: by field id, the value of columns that the batch lacks. TableError if
    a required column is missing.
    """
    columns = _fields(batch.columns, have.fields, want.fields, list(target), len(batch), constants or {})
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _fields(
    values: list[pa.Array],
    have: tuple[NestedField, ...],
    want: tuple[NestedField, ...],
    target: list[pa.Field],
    rows: int,
    constants: Mapping[int, Any],
) -> list[pa.Array]:
    places = {field.field_id: at for at, field in enumerate(have)}
    found = []
    for field, into in zip(want, target, strict=True):
        at = places.get(field.field_id)
        if at is not None:
            found.append(_projected(values[at], have[at].field_type, field.field_type, into.type, constants))
        elif (constant := constants.get(field.field_id, field.initial_default)) is not None:
            found.append(pa.repeat(pa.scalar(constant, type=into.type), rows))
        elif field.required:
            raise TableError(f"a data file lacks the required column {field.name} ({field.field_id})")
        else:
            found.append(pa.nulls(rows, into.type))
    return found


def _projected(
    values: pa.Array, have: IcebergType, want: IcebergType, target: pa.DataType, constants: Mapping[int, Any]
) -> pa.Array:
    match want:
        case StructType():
            assert isinstance(have, StructType), "a struct does not become another type"
            children = [values.field(at) for at in range(values.type.num_fields)]
            fields = [target.field(at) for at in range(target.num_fields)]
            found = _fields(children, have.fields, want.fields, fields, len(values), constants)
            return pa.StructArray.from_arrays(found, fields=fields, mask=values.is_null())
        case ListType():
            assert isinstance(have, ListType), "a list does not become another type"
            start, end, offsets = _offsets(values)
            items = values.values.slice(start, end - start)
            made = _projected(items, have.element_type, want.element_type, target.value_type, constants)
            return pa.LargeListArray.from_arrays(offsets, made, type=target, mask=values.is_null())
        case MapType():
            assert isinstance(have, MapType), "a map does not become another type"
            start, end, offsets = _offsets(values)
            keys, items = (each.slice(start, end - start) for each in (values.keys, values.items))
            made_keys = _projected(keys, have.key_type, want.key_type, target.key_type, constants)
            made_items = _projected(items, have.value_type, want.value_type, target.item_type, constants)
            offsets = offsets.cast(pa.int32())
            return pa.MapArray.from_arrays(offsets, made_keys, made_items, type=target, mask=values.is_null())
    return values if values.type == target else values.cast(target)


def _offsets(values: pa.Array) -> tuple[int, int, pa.Array]:
    """Return where the elements of a list or map array begin and end, and its offsets from there on."""
    offsets = values.offsets.to_numpy().astype("int64")  # a copy: Arrow takes no nulls with offsets of a slice
    start, end = int(offsets[0]), int(offsets[-1])
    return start, end, pa.array(offsets - start)
