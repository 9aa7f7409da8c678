"""The tables of a catalog for people: a row of each, or everything about one.

Place: under open_tables.py: `headrace tables list` and `show`, the doctor, the console. Blocking calls use a thread.
`show` prints the lines that read a table from pyiceberg, Spark and DuckDB; tests run each of them.
Invariant of the time that records have waited: reads only. The answer is a lower bound, and small for a table that
gets commits although it is behind: it counts from the table's newest commit, or from the newest timestamp of the
extent with the first record that the table lacks, whichever is later. So records with old timestamps do not make a
table late before its next round. A timestamp that is later than the extent's file counts as the file's time, which
its id has: timestamps of the future hide no wait.
Invariant of lines that read a table: no password or token is in them: properties with secrets stay in pyiceberg's
own configuration.

    names of the catalog -> what each table and its log say (looking.py) -> a row; and tables that no worker made yet

Invariant: reads only. A table that cannot be read has a row, too, which says why.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from headrace.config.table_configs import APPEND, UPSERT
from headrace.metastore.api.read import Extent, ExtentQuery, IndexApi
from headrace.scan.cluster import ScannedCluster
from headrace.scan.partitions import TopicCatalog
from headrace.storage.errors import HeadraceError
from headrace.storage.file_id import born_ms
from headrace.tables.catalog import CatalogAddress, TableCatalog, snapshot_view
from headrace.tables.creating import TableDeclarer, declarations
from headrace.tables.errors import ForeignTableError, NameTakenError
from headrace.tables.looking import Condition, TableLook, TableReader
from headrace.tables.state import table_end
from headrace.tables.worker import KEPT_BY_SPARK


async def waited_ms(metastore: IndexApi, look: TableLook, now_ms: int) -> int | None:
    """Return for how long, at least; 0: the table has everything, None: it is paused or stopped.

    `now_ms`: since the epoch.
    """
    if look.condition is not Condition.FOLLOWING:
        return None
    if look.progress is None or look.letters.due:
        return max(0, now_ms - _committed_ms(look))
    wanted = {} if look.step is None else look.step.wanted
    queries = [ExtentQuery(look.partitions[p].key, offsets.start, 1) for p, offsets in wanted.items()]
    if not queries:
        return 0
    answers = await metastore.find_extents(queries)
    oldest = min((_known_ms(each.extents[0]) for each in answers if each.extents), default=now_ms)
    return max(0, now_ms - max(_committed_ms(look), oldest))


def _known_ms(extent: Extent) -> int:
    """The newest time in an extent, at most that of its file."""
    times = [extent.newest_ms, None if extent.file_id is None else born_ms(extent.file_id)]
    return min(each for each in times if each is not None)


def _committed_ms(look: TableLook) -> int:
    """The time of the newest commit with offsets, as far as the table still knows; of a new table, its creation."""
    metadata = look.table.metadata
    own = None if look.progress is None else metadata.snapshot_by_id(look.progress.snapshot_id)
    snapshot = own or metadata.current_snapshot()
    return metadata.last_updated_ms if snapshot is None else snapshot.timestamp_ms


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


DECLARED = "declared"
"""The condition of a table that topic configs declare, and that no worker has made yet."""
UNKNOWN = "unknown"
"""The condition of a table that cannot be read; `reason` says why."""
_NUMBERS = ("records", "lag", "waited_ms", "dead_letters", "commit_interval_ms")


@dataclass(frozen=True, slots=True)
class ListedTables:
    """The tables of one namespace."""

    cluster: ScannedCluster
    catalog: TableCatalog
    address: CatalogAddress

    async def look(self, name: str) -> TableLook:
        """Errors as TableReader.look."""
        return await TableReader(self.cluster, TopicCatalog(self.cluster.metastore.cluster), self.catalog).look(name)

    async def rows(self) -> list[dict[str, Any]]:
        """A row for each table of a topic."""
        found = []
        names = await asyncio.to_thread(self.catalog.names)
        for name in names:
            try:
                look = await self.look(name)
            except ForeignTableError:
                continue
            except HeadraceError as error:
                found.append(_unreadable(name, None, error))
                continue
            try:
                found.append(await self._row(name, look))
            except HeadraceError as error:
                found.append(_unreadable(name, look.definition.topic, error))
        return [*found, *await self._not_made(names, {row["table"]: row["topic"] for row in found})]

    async def _not_made(self, names: Sequence[str], topics: Mapping[str, str | None]) -> list[dict[str, Any]]:
        """The tables that topic configs declare and that are not there. `topics`: those of the tables that are."""
        catalog = TopicCatalog(self.cluster.metastore.cluster)
        image, declarer = await catalog.refresh(), TableDeclarer(self.cluster, catalog, self.catalog)
        return [
            {"table": declared.name, "topic": topic.name, "mode": UPSERT if declared.is_keyed else APPEND}
            | {"condition": DECLARED} | dict.fromkeys(_NUMBERS)
            | {"reason": await declarer.why_not_made(topic, declared, names) or "no worker has made it yet"}
            for topic, declared in declarations(image)
            if topics.get(declared.name) != topic.name
        ]  # fmt: skip

    async def describe(self, name: str) -> dict[str, Any]:
        """Everything about a table, with the lines that read it."""
        look = await self.look(name)
        identifier = f"{self.catalog.namespace}.{name}"
        address = TableAddress(
            self.address.name, shown(self.address.properties), identifier, look.table.metadata_location
        )
        progress = look.progress
        positions = {} if progress is None else progress.positions
        return await self._row(name, look) | {
            "table": identifier,
            "topic_id": str(look.definition.topic_id),
            "snapshot": look.table.metadata.current_snapshot_id,
            "partitions": [
                {"partition": p, "offset": each.offset, "lag": look.lag.get(p)} for p, each in positions.items()
            ],
            "gaps": [
                {"partition": gap.partition, "start": gap.start, "end": gap.end}
                for gap in (progress.gaps if progress is not None else ())
            ],
            "end": None if progress is None else table_end(look.table.properties)._asdict(),
            "key_columns": list(look.definition.key_columns),
            "value_format": look.definition.value_format,
            "errors_tolerance": look.definition.tolerance,
            "retention_ms": look.definition.retention_ms,
            "partition_by": list(look.definition.layout),
            "partition_fields": [field.name for field in look.table.spec().fields],
            "catalog": {"name": self.address.name, **shown(self.address.properties)},
            "metadata": look.table.metadata_location,
            "read_with": {
                "pyiceberg": pyiceberg_lines(address),
                "spark": spark_lines(address),
                "duckdb": duckdb_lines(address),
            },
        }

    def _dead_letters(self, look: TableLook) -> tuple[dict[str, Any] | None, str]:
        """The dead-letter table and how many records it has, None if there is none; and why it cannot be made."""
        try:
            letters = self.catalog.load_dead_letters(look.table) if look.definition.has_dead_letters else None
        except NameTakenError as error:
            return None, str(error)
        if letters is None:
            return None, ""
        snapshot = letters.metadata.current_snapshot()
        return {
            "table": ".".join(letters.name()[-2:]),
            "records": 0 if snapshot is None else snapshot_view(snapshot).records,
            "due": sum(gap.end - gap.start for gap in look.letters.due),
        }, ""

    async def _row(self, name: str, look: TableLook) -> dict[str, Any]:
        letters, taken = await asyncio.to_thread(self._dead_letters, look)
        return {
            "table": name,
            "topic": look.definition.topic,
            "mode": look.definition.mode,
            "condition": look.condition.value,
            "records": look.progress.records if look.progress is not None else 0,
            "lag": sum(look.lag.values()) if look.step is not None else None,
            "waited_ms": await waited_ms(self.cluster.metastore.index, look, self.cluster.clock.wall_ms()),
            "dead_letters": letters,
            "reason": look.reason or taken or (KEPT_BY_SPARK if look.definition.is_keyed else None),
            "is_name_taken": bool(taken),
            "is_topic_gone": look.is_topic_gone,
            "commit_interval_ms": None if look.declared is None else look.declared.interval_ms,
        }


def _unreadable(name: str, topic: str | None, error: HeadraceError) -> dict[str, Any]:
    """The row of a table that is there and cannot be read."""
    unknown = dict.fromkeys(_NUMBERS)
    return {"table": name, "topic": topic, "mode": None, "condition": UNKNOWN, **unknown, "reason": str(error)}
