"""Topics with tables: a real metastore, a bucket in a directory, pyiceberg's SQL catalog in a file.

The worker's catalog is one that can fail: it ends the process before or after a commit takes effect, loses the
answer, lets another worker commit first, or is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table import CommitTableResponse, Table

from headrace.metastore.log.snapshot import load_image
from headrace.scan.cluster import ScannedCluster
from headrace.scan.partitions import TopicCatalog
from headrace.scan.read import SplitReader
from headrace.tables.catalog import TableCatalog
from headrace.tables.creating import NewTable, Values, create_table
from headrace.tables.log.chunks import OPENED_BYTES
from headrace.tables.looking import Condition, TableReader
from headrace.tables.state import Definition
from headrace.tables.values.formats import ValueFormats
from headrace.tables.worker import TableRound, TableWorker
from tests.spark.world import ScanWorld, SeenRow
from tests.storage.altered_reads import reads_of

T = TypeVar("T")
NAMESPACE = "headrace"


class Killed(BaseException):
    """The worker's process ends here."""


class Failing(Catalog):
    """Does `next_failure` at the next commit, or when a table is created next: "before" and "after" end the process,
    "lost" loses the answer, "away" refuses. `before_commit` runs ahead of the next commit: another worker's.
    """

    next_failure = ""
    before_commit: Callable[[], None] | None = None

    def create_table(self, *args: Any, **more: Any) -> Table:
        return self._failing(lambda: super(Failing, self).create_table(*args, **more))  # type: ignore[safe-super]

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        first, self.before_commit = self.before_commit, None
        if first is not None:
            first()
        commit = super().commit_table  # type: ignore[safe-super]
        return self._failing(lambda: commit(table, requirements, updates))

    def _failing(self, work: Callable[[], T]) -> T:
        failure, self.next_failure = self.next_failure, ""
        if failure == "before":
            raise Killed
        if failure == "away":
            raise CommitStateUnknownException("the connection was reset")
        done = work()
        if failure == "after":
            raise Killed
        if failure == "lost":
            raise CommitStateUnknownException("the answer was lost")
        return done


class FailingCatalog(Failing, SqlCatalog):
    """A catalog in a file."""


class FailingRestCatalog(Failing, RestCatalog):
    """A catalog behind HTTP."""


def from_a_thread(work: Callable[[], Coroutine[Any, Any, object]]) -> Callable[[], None]:
    """Return what a thread calls to have this done in the loop that runs now: for `before_commit`."""
    loop = asyncio.get_running_loop()

    def call() -> None:
        asyncio.run_coroutine_threadsafe(work(), loop).result()

    return call


class Tables:
    """The tables of one world."""

    def __init__(self, world: ScanWorld, folder: Path, registry_url: str = "", rest_url: str = "") -> None:
        """`rest_url`: of a REST catalog that is used instead of a file."""
        self.world, self.folder, self.rest_url = world, folder, rest_url
        folder.mkdir(parents=True, exist_ok=True)
        self.catalog = TableCatalog(self.open_catalog(), NAMESPACE)
        self.formats = ValueFormats(registry_url)
        self.opened_bytes = OPENED_BYTES

    def again(self) -> Tables:
        """Return the same tables, for another process."""
        return Tables(self.world, self.folder, rest_url=self.rest_url)

    def open_catalog(self) -> FailingCatalog | FailingRestCatalog:
        if self.rest_url:
            return FailingRestCatalog("test", uri=self.rest_url)
        return FailingCatalog("test", uri=self.catalog_uri, warehouse=(self.folder / "warehouse").as_uri())

    @property
    def catalog_uri(self) -> str:
        return self.rest_url or f"sqlite:///{self.folder}/catalog.db"

    @property
    def failing(self) -> Failing:
        assert isinstance(self.catalog.catalog, Failing)
        return self.catalog.catalog

    async def create(
        self,
        topic: str,
        start: str = "earliest",
        layout: Sequence[str] = (),
        name: str = "",
        values: Sequence[str] = (),
        is_keyed: bool = False,
        key_columns: tuple[str, ...] = (),
        **properties: str,
    ) -> None:
        """`values`: the format, the text of its schema, the tolerance."""
        image = await load_image(self.world.postgres.cluster)
        topic_id = image.topics_by_name[topic].topic_id
        definition = Definition(self.world.postgres.cluster_id, topic, topic_id, start, "", *values)
        definition = replace(definition, is_keyed=is_keyed, key_columns=key_columns)
        await asyncio.to_thread(self.catalog.create, name or topic, definition, layout, properties)

    async def create_with_columns(self, topic: str, values: tuple[str, str], layout: Sequence[str]) -> None:
        """Make a table as the command does: `values` are a format and the text of its schema."""
        await self.create_as_told(topic, values, layout)

    async def create_as_told(self, topic: str, values: Sequence[str], layout: Sequence[str] = (), **more: Any) -> None:
        """Create it as the command does: `more` as Values."""
        world, made = self.world, Values(**dict(zip(Values._fields, values, strict=False)) | more)
        cluster = ScannedCluster(world.postgres, world.store, world.clock, world.rng)
        image = (await load_image(world.postgres.cluster)).topics_by_name[topic]
        await create_table(cluster, self.catalog, image, NewTable(topic, "earliest", layout, {}, made))

    async def round(self, name: str = "orders", chunk_bytes: int = 1 << 26) -> TableRound:
        """One round of a new worker's process."""
        async with self.worker(chunk_bytes) as worker:
            return await worker.keep(name)

    @asynccontextmanager
    async def worker(self, chunk_bytes: int = 1 << 26) -> AsyncIterator[TableWorker]:
        """A worker's process."""
        world = self.world
        reader = SplitReader(reads_of(world.store), pin_hint="")
        cluster = ScannedCluster(world.postgres, world.store, world.clock, world.rng)
        tables = TableReader(cluster, TopicCatalog(world.postgres.cluster), self.catalog)
        worker = TableWorker(
            tables, reader, chunk_bytes, self.opened_bytes,
            self.formats,
        )  # fmt: skip
        try:
            yield worker
        finally:
            await asyncio.to_thread(reader._loop.close)

    async def follow(self, name: str = "orders", chunk_bytes: int = 1 << 26) -> TableRound:
        """Rounds until nothing is left."""
        while True:
            done = await self.round(name, chunk_bytes)
            if not done.has_more or done.condition is not Condition.FOLLOWING:
                return done

    def load(self, name: str = "orders") -> Table:
        return self.catalog.load(name)

    def rows(self, name: str = "orders") -> list[SeenRow]:
        """The table's rows as pyiceberg reads them, as a consumer sees records."""
        table = self.load(name).scan().to_arrow()
        times = table.column("timestamp").cast("int64").to_pylist()
        return sorted(
            SeenRow(
                "", row["partition"], row["offset"], time // 1_000, 0, row["key"], row["value"],
                tuple((h["key"], h["value"]) for h in row["headers"] or ()),
            )
            for row, time in zip(table.to_pylist(), times, strict=True)
        )  # fmt: skip

    def rows_with_values(self, name: str) -> list[SeenRow]:
        """The rows of a table with a column `value` of text, and its dead letters, as `rows`."""
        found = [
            (row["kafka"], None if row.get("value") is None else row["value"].encode()) for row in self.found(name)
        ]
        letters = self.catalog.load_dead_letters(self.load(name))
        dead = [] if letters is None else letters.scan().to_arrow().to_pylist()
        rows = [*found, *((row, row["value"]) for row in dead)]
        return sorted(
            SeenRow("", each["partition"], each["offset"], 0, 0, each["key"], value, ()) for each, value in rows
        )

    def found(self, name: str = "orders") -> list[dict[str, Any]]:
        """The rows of a table with a schema, as pyiceberg reads them, by partition and offset."""
        rows: list[dict[str, Any]] = self.load(name).scan().to_arrow().to_pylist()
        return sorted(rows, key=lambda row: (row["kafka"]["partition"], row["kafka"]["offset"]))

    def placed(self, name: str = "orders") -> dict[tuple[int, int], dict[str, Any]]:
        """Return by partition and offset of each row the partition of its file as the table's metadata has it."""
        table, found = self.load(name), {}
        for task in table.scan().plan_files():
            fields = table.metadata.specs()[task.file.spec_id].fields
            place = {field.name: task.file.partition[n] for n, field in enumerate(fields)}
            with table.io.new_input(task.file.file_path).open() as stream:
                rows = pq.read_table(stream, columns=["kafka"]).to_pylist()
            for row in rows:
                at = row["kafka"]["partition"], row["kafka"]["offset"]
                assert at not in found, "a row is in two files"
                found[at] = place
        return found

    def dead(self, name: str = "orders") -> list[tuple[int, int, bytes | None, str]]:
        """Partition, offset, value and reason of each dead letter."""
        letters = self.catalog.load_dead_letters(self.load(name))
        rows = [] if letters is None else letters.scan().to_arrow().to_pylist()
        return sorted((row["partition"], row["offset"], row["value"], row["reason"]) for row in rows)

    async def check(self, topic: str = "orders", name: str = "") -> None:
        """The table has what a consumer of the topic reads, each record once."""
        consumed = [row._replace(topic="", timestamp_type=0) for row in await self.world.consumed(topic)]
        assert await asyncio.to_thread(self.rows, name or topic) == consumed

    def files(self) -> set[Path]:
        """The files below data/ in the warehouse."""
        return set((self.folder / "warehouse").rglob("data/**/*.parquet"))
