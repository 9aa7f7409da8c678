"""Rows of a DataFrame as the columns of a Kafka record: checked by schema, taken from Arrow or from Spark's rows.

Place: under sink.py, on the driver (check_schema) and in tasks.
Invariant: a column is taken by its name, as by Spark's Kafka sink; one that would be lost silently is refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from headrace.scan.bulk.task import Rows
from headrace.scan.errors import BulkWriteError, OptionError

ROWS = 1_000
"""Number of Spark's rows at once."""
_IGNORED = ("offset", "timestamptype")
"""Columns of the source that are ignored: a topic that was read can be written as it is."""


def _is_bytes(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_whole(kind: DataType) -> bool:
    return isinstance(kind, IntegerType | LongType | ShortType | ByteType)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return [field.name for field in fields] == ["key", "value"] and (
        isinstance(fields[0].dataType, StringType) and _is_bytes(fields[1].dataType)
    )


_COLUMNS: Mapping[str, tuple[Callable[[DataType], bool], str]] = {
    "value": (_is_bytes, "binary or string"),
    "key": (_is_bytes, "binary or string"),
    "headers": (_is_headers, "array<struct<key: string, value: binary>>"),
    "topic": (lambda kind: isinstance(kind, StringType), "string"),
    "partition": (_is_whole, "int"),
    "timestamp": (lambda kind: isinstance(kind, TimestampType), "timestamp"),
}


def check_schema(schema: StructType, *, has_topic: bool) -> None:
    """OptionError names a column that is missing, of a wrong type, or unknown."""
    found = {}
    for field in schema.fields:
        name = field.name.lower()
        if name in _IGNORED:
            continue
        if name not in _COLUMNS:
            raise OptionError(f"unknown column: {field.name} (columns of a topic: {', '.join(_COLUMNS)})")
        accepts, types = _COLUMNS[name]
        if not accepts(field.dataType):
            raise OptionError(f"column {field.name} must be {types}: {field.dataType.simpleString()}")
        found[name] = field
    if "value" not in found:
        raise OptionError("column value is missing")
    if "topic" not in found and not has_topic:
        raise OptionError("no topic: give the option topic, or a column topic")


def chunks(rows: Iterator[Any], schema: StructType) -> Iterator[Rows]:
    """Return what Spark gives a writer: Arrow record batches, or rows (before PySpark 4.1, in streams)."""
    for first in rows:
        if isinstance(first, pa.RecordBatch):
            yield _from_arrow(first)
        else:
            yield _from_rows([first, *islice(rows, ROWS - 1)], schema.fieldNames())


def _from_arrow(batch: pa.RecordBatch) -> Rows:
    columns = {name.lower(): batch.column(place) for place, name in enumerate(batch.schema.names)}
    found: dict[str, Sequence[Any]] = {}
    for name, column in columns.items():
        if name in ("key", "value"):
            found[f"{name}s"] = column.cast(pa.binary()).to_pylist()
        elif name == "timestamp":
            found["timestamps"] = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast("int64").to_pylist()
        elif name == "headers":
            found["headers"] = _headers(
                [each and [(h["key"], h["value"]) for h in each] for each in column.to_pylist()]
            )
        elif name in _COLUMNS:
            found[f"{name}s"] = column.to_pylist()
    return Rows(**found)


def _from_rows(rows: Sequence[Any], names: Sequence[str]) -> Rows:
    found: dict[str, Sequence[Any]] = {}
    for place, original in enumerate(names):
        name, values = original.lower(), [row[place] for row in rows]
        if name in ("key", "value"):
            found[f"{name}s"] = [None if each is None else _bytes(each) for each in values]
        elif name == "timestamp":
            found["timestamps"] = [None if each is None else _milliseconds(each) for each in values]
        elif name == "headers":
            found["headers"] = _headers([each and [(h["key"], h["value"]) for h in each] for each in values])
        elif name in _COLUMNS:
            found[f"{name}s"] = values
    return Rows(**found)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _milliseconds(time: datetime.datetime) -> int:
    return round(time.timestamp() * 1_000_000) // 1_000


def _headers(rows: Iterable[Any]) -> list[list[tuple[str, bytes | None]]]:
    found = []
    for headers in rows:
        row = []
        for name, value in headers or ():
            if name is None:
                raise BulkWriteError("a header has no key")
            row.append((name, None if value is None else _bytes(value)))
        found.append(row)
    return found
