"""The tables of a catalog for people: a row of each, and everything about one.

    names of the catalog -> what each table and its log say (looking.py) -> a row; and tables that no worker made yet

Place: under open_tables.py: `headrace tables list` and `show`, the doctor, the console. Blocking calls use a thread.
Invariant: reads only. A table that cannot be read has a row, too, which says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.config.table_configs import APPEND, UPSERT
from headrace.scan.cluster import ScannedCluster
from headrace.scan.partitions import TopicCatalog
from headrace.storage.errors import HeadraceError
from headrace.tables.catalog import CatalogAddress, TableCatalog, snapshot_view
from headrace.tables.declaring import TableDeclarer, declarations
from headrace.tables.errors import ForeignTableError, NameTakenError
from headrace.tables.looking import TableLook, TableReader
from headrace.tables.reading import TableAddress, duckdb_lines, pyiceberg_lines, shown, spark_lines
from headrace.tables.state import table_end
from headrace.tables.waiting import waited_ms
from headrace.tables.worker import KEPT_BY_SPARK

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
