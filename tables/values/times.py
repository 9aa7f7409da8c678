"""Times that a table can have: those of the years 1 to 9999.

Place: values that became columns are checked here (open.py), and the times of records are made to fit (rows.py). Pure.
Invariant: a time in a table is one that Python, Spark and the statistics of Parquet files can name. Kafka's records may
have any number of milliseconds.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
FIRST_MICROS = (datetime.datetime.min - _EPOCH) // _MICROSECOND
LAST_MICROS = (datetime.datetime.max - _EPOCH) // _MICROSECOND


def closest_times(times: pa.Array) -> pa.Array:
    """Return timestamps of microseconds, with the closest one in place of each that no table can have."""
    micros = times.cast(pa.int64())
    fitting = pc.min_element_wise(
        pc.max_element_wise(micros, FIRST_MICROS, skip_nulls=False), LAST_MICROS, skip_nulls=False
    )
    return fitting.cast(times.type)


def require_times(column: pa.Array) -> None:
    """ValueError if the column has a time, at any depth, that no table can have."""
    if not _has_times(column.type):
        return
    for times in _times_in(column):
        found = pc.min_max(times.cast(pa.int64()))
        least, most = found["min"].as_py(), found["max"].as_py()
        if least is not None and (least < FIRST_MICROS or most > LAST_MICROS):
            raise ValueError("a time outside of the years 1 to 9999")


def _has_times(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or any(_has_times(kind.field(n).type) for n in range(kind.num_fields))


def _times_in(column: pa.Array) -> Iterator[pa.Array]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        yield column
    elif pa.types.is_struct(kind):
        for each in column.flatten():
            yield from _times_in(each)
    elif pa.types.is_map(kind):
        yield from _times_in(column.items)
    elif pa.types.is_large_list(kind):
        yield from _times_in(column.flatten())
