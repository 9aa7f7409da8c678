"""A chunk's rows as Parquet files, one per date. Pure.

Place: the last step of an export, before the files are stored.
Invariant: names and rows depend only on the chunk, so a chunk that is written again replaces its own files.
    date=2026-11-22/orders-3-000000000000120000-000000000000129999.parquet
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import compute, parquet

DATE = "date"
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
"""Folder of times outside of the years 1 to 9999: readers take the folder's date for null."""
_MICROSECONDS = pa.timestamp("us", tz="UTC")
_FIRST = pa.scalar(-62_135_596_800_000_000, _MICROSECONDS)
_AFTER = pa.scalar(253_402_300_800_000_000, _MICROSECONDS)
COMPRESSION = "zstd"


def files_of(rows: pa.Table, topic: str, partition: int, start: int, end: int) -> Iterator[tuple[str, bytes]]:
    """(key, bytes) of each file for the offsets [start, end); the date is that of the record's timestamp in UTC."""
    times = rows.column("timestamp")
    has_date = compute.and_(compute.greater_equal(times, _FIRST), compute.less(times, _AFTER))
    dates = compute.if_else(has_date, compute.strftime(times, format="%Y-%m-%d"), NO_DATE)
    for date in sorted(compute.unique(dates).to_pylist()):
        sink = pa.BufferOutputStream()
        parquet.write_table(rows.filter(compute.equal(dates, date)), sink, compression=COMPRESSION)
        name = f"{topic}-{partition}-{start:018}-{end - 1:018}.parquet"
        yield f"{DATE}={date}/{name}", sink.getvalue().to_pybytes()
