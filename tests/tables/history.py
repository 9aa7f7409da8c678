"""Random histories of a topic with transactions, and of its table: processes that keep it are killed, lose answers,
work at the same time, and other engines rewrite the table and expire its snapshots.

    TableHistory    what happens to each table
    AppendHistory   to one with a row per record; tests/spark/keyed_history.py: to one with a row per key
Invariant checked by AppendHistory: once the worker has nothing to do, the table has each record that a consumer of
committed records could read when the worker came by, once, with its offset; what retention removed before is named as a
gap. If values have a schema, each record is in the table or in its dead-letter table, although each worker decides by
chance which fit.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pyarrow as pa
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import snapshot as snapshots

from headrace.storage.errors import UnavailableError
from headrace.tables.catalog import view_of
from headrace.tables.errors import MisfitError
from headrace.tables.looking import Condition
from headrace.tables.state import Definition, Follows, OffsetGap, standing_of
from headrace.tables.values.columns import ValueShape
from headrace.tables.values.formats import ValueFormats
from headrace.tables.values.open import LaterError
from headrace.tables.worker import TableRound
from tests.spark.world import ScanWorld, SeenRow
from tests.tables.world import Killed, Tables, from_a_thread
from tests.transactional_world import SeenRecord, Truth, some_history

ROUNDS_MAX = 500
FAILURES = ("", "", "before", "after", "lost", "away")
SIZES = (1, 200, 1 << 26)
"""Stored bytes that a commit adds, or a task reads."""
OPENED_SIZES = (1, 300, 1 << 27)
"""Opened bytes that a commit adds."""
_names = itertools.count()


class FickleFormats(ValueFormats):
    """A format that decides by chance, each time, whether a value fits; its registry is away at times. `later`: how
    often it leaves a value to the next chunk, if that is not the first one.
    """

    def __init__(self, rng: random.Random, later: float = 0.0) -> None:
        super().__init__()
        self.rng, self.later = rng, later
        self._is_first = True
        self.shape = ValueShape("a text", pa.struct([("value", pa.large_string())]))

    def of(self, definition: Definition) -> FickleFormats:
        return self

    def begin(self, values: object = ()) -> None:
        if self.rng.random() < 0.1:
            raise UnavailableError("the registry is away")
        self._is_first = True

    def open(self, value: bytes) -> tuple[ValueShape, Any]:
        draw, is_first, self._is_first = self.rng.random(), self._is_first, False
        if draw < 0.4:
            raise MisfitError("by chance")
        if not is_first and draw > 1 - self.later:
            raise LaterError
        return self.shape, {"value": value.decode()}


class TableHistory:
    """One topic with two partitions, and its table. A subclass says what is written, and who keeps the table."""

    def __init__(self, world: ScanWorld, tables: Tables, rng: random.Random, *, is_valued: bool = False) -> None:
        self.world, self.tables, self.rng, self.is_valued = world, tables, rng, is_valued
        tables.formats = FickleFormats(rng)
        self.truth = Truth()
        self.name = f"t{next(_names)}"

    async def tell(self, parts: int = 4) -> None:
        """Let it happen; AssertionError if the table is wrong."""
        self.keys = await self.world.topic(self.name, 2)
        await self._create(("json",) if self.is_valued else ())
        for part in range(parts):
            await self._write(6)
            for _ in range(self.rng.randint(1, 3)):
                await self._round()
            await self._between(part)
        for _ in range(ROUNDS_MAX):
            if not (await self._follow()).has_more:
                return await self.check()
        raise AssertionError("the table does not come to rest")

    async def _create(self, values: tuple[str, ...]) -> None:
        """Make the table. `values`: as Tables.create."""
        raise NotImplementedError

    async def _write(self, steps: int) -> None:
        raise NotImplementedError

    async def _keep(self, tables: Tables, size: int | None = None) -> TableRound:
        """One round of a process. `size`: of what one commit adds, or one task; None: after the last failure."""
        raise NotImplementedError

    async def check(self) -> None:
        """Compare with what was sent."""
        raise NotImplementedError

    async def _round(self) -> None:
        catalog, rng = self.tables.failing, self.rng
        catalog.next_failure = rng.choice(FAILURES)
        if rng.random() < 0.3:
            catalog.before_commit = self._other_process()
        with contextlib.suppress(Killed, UnavailableError):
            await self._keep(self.tables, rng.choice(SIZES))
        catalog.next_failure, catalog.before_commit = "", None

    def _other_process(self) -> Callable[[], None]:
        """Another process gets to commit first; more records have arrived for it, or none."""
        other, more = self.tables.again(), self.rng.random() < 0.5
        other.formats = self.tables.formats

        async def work() -> None:
            if more:
                await self._write(2)
            with contextlib.suppress(UnavailableError):
                await self._keep(other, self.rng.choice(SIZES))

        return from_a_thread(work)

    async def _between(self, part: int) -> None:
        draw = self.rng.random()
        if part == 1:
            await self.world.compact(1)
        for table in self._tables_of_others():
            if draw < 0.3:
                await asyncio.to_thread(rewrite, table())
            if 0.15 < draw < 0.6:
                await asyncio.to_thread(expire_all_but_the_newest, table())
        if 0.6 < draw < 0.75:
            await self._before_records_are_deleted()
            key = self.rng.choice(self.keys)
            await self.world.delete_records(key, self.rng.randint(0, 4))

    async def _before_records_are_deleted(self) -> None:
        """Do nothing: what the table lacks becomes a gap."""

    def _tables_of_others(self) -> list[Callable[[], Table]]:
        """Return the tables that other engines rewrite and expire."""
        return self._tables()

    def _tables(self) -> list[Callable[[], Table]]:
        """Return the table, and its dead-letter table if there is one."""
        letters = self.tables.catalog.load_dead_letters(self.tables.load(self.name))
        names = [self.name] if letters is None else [self.name, letters.name()[-1]]
        return [partial(self.tables.load, name) for name in names]

    async def _follow(self) -> TableRound:
        """Return the next round that the registry allows."""
        while True:
            try:
                return await self._keep(self.tables)
            except UnavailableError:
                continue

    async def _gaps(self) -> list[OffsetGap]:
        """Return what the tables name as lost; they have all else."""
        done = await self._follow()
        assert done.condition is Condition.FOLLOWING, done.reason
        gaps: list[OffsetGap] = []
        for table in self._tables():
            standing = standing_of(view_of(table()))
            assert isinstance(standing, Follows)
            gaps += standing.progress.gaps
        return gaps

    def left(self, index: int, gaps: list[OffsetGap]) -> list[SeenRecord]:
        """Return the committed records of a partition that are in no gap."""
        lost = [gap for gap in gaps if gap.partition == index]
        return [
            record
            for record in self.truth.committed(self.keys[index])
            if not any(gap.start <= record.offset < gap.end for gap in lost)
        ]


class AppendHistory(TableHistory):
    """The table has a row per record, and local workers keep it."""

    async def _create(self, values: tuple[str, ...]) -> None:
        self.tables.formats = FickleFormats(self.rng, later=0.1)
        await self.tables.create(self.name, layout=self.rng.choice([(), ("partition",), ("day",)]), values=values)

    async def _write(self, steps: int) -> None:
        await some_history(self.world, self.keys, self.rng, steps, self.truth)

    async def _keep(self, tables: Tables, size: int | None = None) -> TableRound:
        tables.opened_bytes = self.rng.choice(OPENED_SIZES)
        return await tables.round(self.name, size or SIZES[-1])

    async def _before_records_are_deleted(self) -> None:
        with contextlib.suppress(UnavailableError):
            await self.tables.follow(self.name)

    def _rows(self) -> list[SeenRow]:
        return self.tables.rows_with_values(self.name) if self.is_valued else self.tables.rows(self.name)

    async def check(self) -> None:
        """Compare with what was sent."""
        gaps = await self._gaps()
        rows = await asyncio.to_thread(self._rows)
        for index in range(len(self.keys)):
            found = [
                SeenRecord(
                    row.offset,
                    None if row.key is None else row.key.decode(),
                    None if row.value is None else row.value.decode(),
                )
                for row in rows
                if row.partition == index
            ]
            assert found == self.left(index, gaps), f"partition {index}"


def rewrite(table: Table) -> None:
    """Replace the table's files by one, as a maintenance job of another engine does."""
    files = [task.file for task in table.scan().plan_files()]
    if not files:
        return
    rows = table.scan().to_arrow()
    change = table.transaction()
    with (
        mock.patch.object(snapshots, "update_snapshot_summaries", _as_replace),
        snapshots._OverwriteFiles(operation=Operation.OVERWRITE, transaction=change, io=table.io) as replaced,
    ):
        for file in files:
            replaced.delete_data_file(file)
        for file in _dataframe_to_data_files(table.metadata, rows, table.io):
            replaced.append_data_file(file)
    change.commit_transaction()


_update_snapshot_summaries = snapshots.update_snapshot_summaries  # type: ignore[attr-defined]


def _as_replace(summary: object, previous_summary: object = None) -> object:
    made = _update_snapshot_summaries(summary, previous_summary)  # type: ignore[arg-type]
    return Summary(operation=Operation.REPLACE, **made.additional_properties)


def expire_all_but_the_newest(table: Table) -> None:
    """Do the same as `expire_snapshots(retain_last => 1)` of Spark."""
    current = table.metadata.current_snapshot_id
    old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != current]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()
