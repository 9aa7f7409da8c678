"""JSON values as typed columns: a schema inferred from a sample, then applied to every value.

Place: between a chunk's rows and its Parquet files.
Invariant: the schema is inferred once and kept in the export's state, so all files have the same. A value that does not
fit is an error that names its offset, and nothing of its chunk counts as exported.
"""

from __future__ import annotations

import base64
import io

import pyarrow as pa
from pyarrow import json as arrow_json

from headrace.scan.errors import OptionError

SAMPLE = 10_000
"""Values from which the schema is inferred, at most."""


def infer_schema(rows: pa.Table) -> pa.Schema:
    """The schema of the JSON objects in the column `value`. OptionError if they are none."""
    values = [value for value in rows.column("value").slice(0, SAMPLE).to_pylist() if value is not None]
    if not values:
        raise OptionError("no value to infer a schema from")
    try:
        return _parse(values, None).schema
    except pa.ArrowInvalid as error:
        raise OptionError(f"values are not JSON objects with one schema: {error}") from error


def with_values(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with a struct of `schema` as `value`; null where the value is null. OptionError names a misfit."""
    values = rows.column("value").to_pylist()
    try:
        parsed = _parse([b"{}" if value is None else value for value in values], schema)
    except pa.ArrowInvalid as error:
        raise _misfit(rows, values, schema, error) from error
    if parsed.num_rows != len(values):
        raise _misfit(rows, values, schema, "more or less than one JSON object")
    # Nulls are set by their positions: an object without fields and a missing one are different values.
    struct = parsed.combine_chunks().to_struct_array().combine_chunks() if values else _empty(schema)
    mask = pa.array([value is None for value in values], pa.bool_())
    fields = [struct.field(number) for number in range(struct.type.num_fields)]
    column = pa.StructArray.from_arrays(fields, fields=list(struct.type), mask=mask)
    return rows.set_column(rows.schema.get_field_index("value"), "value", column)


def schema_text(schema: pa.Schema) -> str:
    """For the state."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_of(text: str) -> pa.Schema:
    """What `schema_text` made."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _empty(schema: pa.Schema) -> pa.StructArray:
    return pa.array([], pa.struct(list(schema)))


def _parse(values: list[bytes], schema: pa.Schema | None) -> pa.Table:
    options = arrow_json.ParseOptions(
        explicit_schema=schema,
        newlines_in_values=True,
        unexpected_field_behavior="infer" if schema is None else "error",
    )
    body = b"\n".join(values)
    reading = arrow_json.ReadOptions(use_threads=False, block_size=max(len(body) + 1, 1024))
    return arrow_json.read_json(io.BytesIO(body), read_options=reading, parse_options=options)


def _misfit(rows: pa.Table, values: list[bytes | None], schema: pa.Schema, reason: object) -> OptionError:
    """Names the first value that does not fit."""
    for number, value in enumerate(values):
        if value is not None:
            try:
                alone = _parse([value], schema)
            except pa.ArrowInvalid as error:
                reason = error
            else:
                if alone.num_rows == 1:
                    continue
            where = {name: rows.column(name)[number].as_py() for name in ("topic", "partition", "offset")}
            text = " ".join(f"{name}={each}" for name, each in where.items())
            return OptionError(f"a value does not fit the inferred schema: {text}: {reason}")
    return OptionError(f"values do not fit the inferred schema: {reason}")
