"""The lines that read a table from pyiceberg, Spark and DuckDB. Pure.

Place: what `headrace tables show` prints; tests run each of them.
Invariant: no password or token is in them: properties with secrets stay in pyiceberg's own configuration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

_SECRET = re.compile(r"password|secret|token|credential|access-key", re.IGNORECASE)


class TableAddress(NamedTuple):
    """The place of a table: its catalog's name and properties, its identifier, its newest metadata file."""

    catalog: str
    properties: Mapping[str, str]
    identifier: str
    metadata: str


def shown(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties without secrets."""
    return {
        key: value
        for key, value in sorted(properties.items())
        if _SECRET.search(key) is None and urlsplit(value).password is None
    }


def pyiceberg_lines(address: TableAddress) -> str:
    """Python: an Arrow table."""
    given = f", **{json.dumps(shown(address.properties))}" if address.properties else ""
    return (
        "from pyiceberg.catalog import load_catalog\n"
        f"table = load_catalog({json.dumps(address.catalog)}{given}).load_table({json.dumps(address.identifier)})\n"
        "print(table.scan().to_arrow())"
    )


def duckdb_lines(address: TableAddress) -> str:
    """SQL of DuckDB: the table as of its newest snapshot now."""
    return f"INSTALL iceberg; LOAD iceberg;\nSELECT * FROM iceberg_scan('{_sql(_local(address.metadata))}');"


def spark_lines(address: TableAddress) -> str:
    """Options for spark-sql and a query; the jar fits Spark 4.1."""
    name, uri = address.catalog, address.properties.get("uri", "")
    options = {f"spark.sql.catalog.{name}": "org.apache.iceberg.spark.SparkCatalog"}
    if uri.startswith("http"):
        options |= {f"spark.sql.catalog.{name}.type": "rest", f"spark.sql.catalog.{name}.uri": uri}
    else:
        options |= {f"spark.sql.catalog.{name}.type": "jdbc", f"spark.sql.catalog.{name}.uri": _jdbc(uri)}
        options[f"spark.sql.catalog.{name}.jdbc.schema-version"] = "V1"
    if warehouse := address.properties.get("warehouse"):
        options[f"spark.sql.catalog.{name}.warehouse"] = warehouse
    given = " \\\n".join(f"  --conf {key}={value}" for key, value in options.items())
    packages = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
    if uri.startswith("sqlite"):
        packages += ",org.xerial:sqlite-jdbc:3.54.1.0"
    return f"spark-sql --packages {packages} \\\n{given} \\\n  -e 'SELECT * FROM {name}.{address.identifier}'"


def _jdbc(uri: str) -> str:
    """Return the address as Java's drivers write it: one slash less for a file of SQLite, no driver of Python."""
    if not uri:
        return "URI"  # it has a password
    scheme, _, rest = uri.partition("://")
    base = scheme.partition("+")[0]
    return f"jdbc:sqlite:{rest.removeprefix('/')}" if base == "sqlite" else f"jdbc:{base}://{rest}"


def _local(location: str) -> str:
    return location.removeprefix("file://") if location.startswith("file:///") else location


def _sql(text: str) -> str:
    return text.replace("'", "''")
