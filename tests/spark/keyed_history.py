"""Random histories of a topic with keys, and of its table with a row per key: drivers that are killed, lose answers,
work at the same time, and other engines that rewrite the table and expire its snapshots.

Invariant checked: once the driver has nothing to do, the table has the last value of each key of those records that a
consumer of committed records could read when the driver came by, one row per key, and none for a key with null as its
last value. What retention removed before is named as a gap; each record without a key, or with a value that does not
fit, is in the dead-letter table. The local worker changes nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pyiceberg.table import Table

from headrace.tables.looking import Condition
from headrace.tables.state import OffsetGap
from headrace.tables.worker import KEPT_BY_SPARK, TableRound
from tests.spark.table_driver import driver
from tests.spark.world import ScanWorld
from tests.tables.history import TableHistory
from tests.tables.world import Tables
from tests.transactional_world import send, some_writers

KEYS = ("abcd", "efgh")
"""By partition, as a partitioner places them."""


class KeyedRow(NamedTuple):
    """What a table has of a key."""

    value: str | None
    partition: int
    offset: int


class KeyedHistory(TableHistory):
    """The table has a row per key. `spark`: a session, or LocalTasks."""

    def __init__(
        self, world: ScanWorld, folder: Path, spark: Any, rng: random.Random, *, is_valued: bool = False
    ) -> None:
        super().__init__(world, Tables(world, folder), rng, is_valued=is_valued)
        self.spark = spark

    async def _create(self, values: tuple[str, ...]) -> None:
        key = "kafka.key" if self.is_valued else "key"
        layout = self.rng.choice([(), (f"bucket[2]({key})",), (f"bucket[3]({key})", "partition")])
        await self.tables.create(self.name, layout=layout, values=values, is_keyed=True)

    async def _write(self, steps: int) -> None:
        writers = await some_writers(self.world, self.truth, self.rng, 2)
        for step in range(steps):
            index, writer, draw = self.rng.randrange(2), self.rng.choice(writers), self.rng.random()
            records = [
                (
                    self.rng.choice([*KEYS[index], *KEYS[index], None]),
                    self.rng.choice([f"{step}-{n}", f"{step}-{n}", None]),
                )
                for n in range(self.rng.randint(1, 4))
            ]
            if draw < 0.35:
                await writer.send(self.keys[index], *records)
            elif draw < 0.75:
                await send(self.world, self.truth, self.keys[index], records)
            else:
                await writer.end(commits=self.rng.random() < 0.6)

    async def _round(self) -> None:
        await super()._round()
        if self.rng.random() < 0.3:
            await self._local_worker()

    async def _keep(self, tables: Tables, size: int | None = None) -> TableRound:
        split_bytes = size or self.rng.choice([1, 1 << 26])
        async with driver(self.spark, tables, split_bytes) as worker:
            worker.chunk_bytes = split_bytes
            return await worker.keep(self.name)

    async def _local_worker(self) -> None:
        before = self.tables.load(self.name).metadata
        done = await self.tables.round(self.name)
        if done.condition is Condition.FOLLOWING and before.current_snapshot_id is not None:
            assert (done.reason, done.outcome) == (KEPT_BY_SPARK, None)
            assert self.tables.load(self.name).metadata == before

    def _tables_of_others(self) -> list[Callable[[], Table]]:
        return [partial(self.tables.load, self.name)]

    async def check(self) -> None:
        """Compare with what was sent."""
        gaps = await self._gaps()
        schema = self.tables.load(self.name).schema()
        assert schema.identifier_field_names() == {"kafka.key" if self.is_valued else "key"}
        dead = {(partition, offset) for partition, offset, _, _ in self.tables.dead(self.name)}
        assert await asyncio.to_thread(self.rows) == self.expected(gaps, dead)

    def expected(self, gaps: list[OffsetGap], dead: set[tuple[int, int]]) -> dict[str, KeyedRow]:
        """The last values of the keys, without those that were lost and those that are dead letters."""
        found: dict[str, KeyedRow] = {}
        for index in range(len(self.keys)):
            for record in self.left(index, gaps):
                if (index, record.offset) in dead:
                    continue
                assert record.key is not None, f"partition {index}, offset {record.offset}: no dead letter"
                found.pop(record.key, None)
                if record.value is not None:
                    found[record.key] = KeyedRow(record.value, index, record.offset)
        return found

    def rows(self) -> dict[str, KeyedRow]:
        """The table as pyiceberg reads it."""
        found = {}
        for row in self.tables.load(self.name).scan().to_arrow().to_pylist():
            log = row["kafka"] if self.is_valued else row
            value = row["value"]
            if not self.is_valued and value is not None:
                value = value.decode()
            key = log["key"].decode()
            assert key not in found, f"key {key} has two rows"
            found[key] = KeyedRow(value, log["partition"], log["offset"])
        return found
