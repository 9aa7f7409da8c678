"""What `headrace tables` does, on open connections.

Place: under command.py; imports pyiceberg.
Invariant: as command.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from headrace.config.settings import Settings
from headrace.scan.cluster import ScannedCluster, open_cluster
from headrace.scan.errors import OptionError, TableError
from headrace.scan.partitions import TopicCatalog
from headrace.scan.tables.appending import Append, CommitOutcome, append
from headrace.scan.tables.catalog import CatalogAddress, TableCatalog
from headrace.scan.tables.log_ranges import EARLIEST, LATEST, start_positions, start_timestamp
from headrace.scan.tables.reading import TableAddress, duckdb_lines, pyiceberg_lines, shown, spark_lines
from headrace.scan.tables.resume import Choice, decide, follow_log
from headrace.scan.tables.state import PAUSED, Definition
from headrace.scan.tables.worker import Condition, TableLook, TableReader
from headrace.storage.errors import HeadraceError, NotFoundError, UnavailableError


@asynccontextmanager
async def open_tables(settings: Settings) -> AsyncIterator[OpenTables]:
    """Metastore, bucket and catalog. Errors as open_cluster and CatalogAddress.open."""
    address = CatalogAddress.of(settings)
    catalog = await asyncio.to_thread(address.open)
    try:
        async with open_cluster(settings) as cluster:
            yield OpenTables(cluster, catalog, address)
    finally:
        await asyncio.to_thread(catalog.close)


@dataclass(frozen=True, slots=True)
class OpenTables:
    """The tables of one namespace."""

    cluster: ScannedCluster
    catalog: TableCatalog
    address: CatalogAddress

    async def create(
        self, name: str, topic: str, start: str, layout: Sequence[str], properties: Mapping[str, str]
    ) -> None:
        """Create the table and fix where it begins. NotFoundError for an unknown topic; errors as TableCatalog."""
        if start not in (EARLIEST, LATEST):
            start_timestamp(start)
        image = (await TopicCatalog(self.cluster.metastore).refresh()).topics_by_name.get(topic)
        if image is None:
            raise NotFoundError(f"topic does not exist: topic={topic}")
        definition = Definition(self.cluster.metastore.cluster_id, topic, image.topic_id, start, "")
        table = await asyncio.to_thread(self.catalog.create, name, definition, layout, properties)
        positions = await start_positions(self.cluster, image, start)
        made = await asyncio.to_thread(append, table, None, Append(None, positions))
        if made.outcome is CommitOutcome.UNKNOWN:
            raise UnavailableError(f"the table was created, and begins at its worker's first round: {name}")

    async def rows(self) -> list[dict[str, Any]]:
        """A row for each table of a topic."""
        found = []
        for name in await asyncio.to_thread(self.catalog.names):
            try:
                look = await self._look(name)
            except TableError:
                continue  # not ours
            except HeadraceError as error:
                found.append({"table": name, "topic": None, "condition": "unknown", "reason": str(error)})
                continue
            found.append(_row(name, look))
        return found

    async def describe(self, name: str) -> dict[str, Any]:
        """Everything about a table, with the lines that read it."""
        look = await self._look(name)
        identifier = f"{self.catalog.namespace}.{name}"
        address = TableAddress(
            self.address.name, shown(self.address.properties), identifier, look.table.metadata_location
        )
        progress = look.progress
        positions = {} if progress is None else progress.positions
        return _row(name, look) | {
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
            "catalog": {"name": self.address.name, **shown(self.address.properties)},
            "metadata": look.table.metadata_location,
            "read_with": {
                "pyiceberg": pyiceberg_lines(address),
                "spark": spark_lines(address),
                "duckdb": duckdb_lines(address),
            },
        }

    async def pause(self, name: str, reason: str) -> None:
        """Let no worker append until `resume`."""
        await asyncio.to_thread(self.catalog.set_property, name, PAUSED, reason)

    async def resume(self, name: str, at: str | None) -> None:
        """Let workers append again. OptionError if the table is stopped and `at` does not say from where."""
        look = await self._look(name)
        if look.condition is Condition.STOPPED:
            if at is None:
                raise OptionError(f"the table is stopped: {look.reason}. Say --at rows, offsets or log")
            if look.step is not None and look.step.ahead:
                if at != Choice.LOG.value:
                    raise OptionError(f"say --at log: {look.reason}")
                await asyncio.to_thread(follow_log, look.table, {each.partition: each for each in look.step.ahead})
            else:
                await asyncio.to_thread(decide, look.table, Choice(at))
        elif at is not None:
            raise OptionError(f"the table is not stopped: {name}: --at is for one that is")
        await asyncio.to_thread(self.catalog.set_property, name, PAUSED, "")

    async def drop(self, name: str, *, purge: bool) -> None:
        """Remove it from the catalog."""
        await asyncio.to_thread(self.catalog.drop, name, purge=purge)

    async def _look(self, name: str) -> TableLook:
        return await TableReader(self.cluster, TopicCatalog(self.cluster.metastore), self.catalog).look(name)


def _row(name: str, look: TableLook) -> dict[str, Any]:
    return {
        "table": name,
        "topic": look.definition.topic,
        "condition": look.condition.value,
        "records": look.progress.records if look.progress is not None else 0,
        "lag": sum(look.lag.values()) if look.step is not None else None,
        "reason": look.reason or None,
    }
