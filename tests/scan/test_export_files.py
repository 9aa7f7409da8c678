"""The files of a chunk: one for each date, and one for the times that have none."""

from __future__ import annotations

import io

import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is needed: make setup")
from pyarrow import parquet  # noqa: E402

from headrace.scan.export.run import NO_DATE, files_of  # noqa: E402


@pytest.mark.parametrize(
    ("time_us", "date"),
    [
        (0, "1970-01-01"),
        (-1, "1969-12-31"),
        (253_402_300_800_000_000 - 1, "9999-12-31"),
        (253_402_300_800_000_000, NO_DATE),
        (2**63 - 1, NO_DATE),
        (-(2**63), NO_DATE),
    ],
)
def test_each_time_has_a_folder(time_us: int, date: str) -> None:
    rows = pa.table({"offset": [3], "timestamp": pa.array([time_us], pa.timestamp("us", tz="UTC"))})
    ((key, data),) = files_of(rows, "t", 0, 3, 4)
    assert key.startswith(f"date={date}/")
    assert parquet.read_table(io.BytesIO(data)).column("timestamp").cast("int64").to_pylist() == [time_us]
