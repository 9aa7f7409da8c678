"""DuckDB with its iceberg extension, both from the package index: nothing is downloaded when a test runs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb

INSTALL = "INSTALL iceberg; LOAD iceberg;"


def rows_by_duckdb(lines: str) -> Any:
    """Return what the lines of `tables show` select, as an Arrow table; the extensions come from their packages."""
    first, query = lines.split("\n", 1)
    assert first == INSTALL
    connection = duckdb.connect()
    try:
        connection.execute("SET TimeZone = 'UTC'")
        for name in ("avro", "iceberg"):
            folder = Path(str(import_module(f"duckdb_extension_{name}").__file__)).parent
            (extension,) = folder.rglob(f"{name}.duckdb_extension")
            connection.execute(f"LOAD '{extension}'")
        return connection.execute(query).to_arrow_table()
    finally:
        connection.close()
