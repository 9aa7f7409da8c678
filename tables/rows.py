"""The columns of a table without a schema: the bytes of each record, and where it was in the topic. Those of a table
with one are in values/, with the rest of the record in the struct `kafka`.

Place: between the record batches of a scan and the table's Parquet files, which pyiceberg writes.
Invariant: a row per record, in offset order inside a partition; `partition` and `offset` together are unique.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from headrace.scan.columns import TYPES
from headrace.scan.options import HEADERS
from headrace.tables.values.columns import KAFKA
from headrace.tables.values.times import closest_times

_HEADER = StructType(NestedField(8, "key", StringType()), NestedField(9, "value", BinaryType()))
SCHEMA = Schema(
    NestedField(1, "key", BinaryType()),
    NestedField(2, "value", BinaryType()),
    NestedField(3, HEADERS, ListType(7, _HEADER, element_required=False)),
    NestedField(4, "timestamp", TimestamptzType()),
    NestedField(5, "partition", IntegerType(), required=True),
    NestedField(6, "offset", LongType(), required=True),
)
VALUED_SCHEMA = Schema(
    NestedField(
        1,
        KAFKA,
        StructType(
            NestedField(2, "key", BinaryType()),
            NestedField(3, HEADERS, ListType(7, _HEADER, element_required=False)),
            NestedField(4, "timestamp", TimestamptzType()),
            NestedField(5, "partition", IntegerType(), required=True),
            NestedField(6, "offset", LongType(), required=True),
        ),
        required=True,
    )
)
"""A table with a schema begins with this; columns are added as records need them."""
DEAD_LETTER_SCHEMA = Schema(*SCHEMA.fields, NestedField(10, "reason", StringType()))
COLUMNS = ("key", "value", HEADERS, "timestamp", "partition", "offset")
_REQUIRED = ("partition", "offset")
ARROW = pa.schema([pa.field(name, TYPES[name], nullable=name not in _REQUIRED) for name in COLUMNS])


def table_of(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """The rows as the table takes them. A record's time outside of the years 1 to 9999 is the closest one inside."""
    found = []
    for batch in batches:
        columns = {name: batch.column(name) for name in COLUMNS}
        columns["timestamp"] = closest_times(columns["timestamp"])
        found.append(pa.RecordBatch.from_arrays(list(columns.values()), schema=ARROW))
    return pa.Table.from_batches(found, ARROW)
