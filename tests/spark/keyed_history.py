"""Random histories of a topic with keys, and of its table with a row per key: drivers that are killed, lose answers,
work at the same time, and other engines that rewrite the table and expire its snapshots.

Invariant checked: once the driver has nothing to do, the table has the last value of each key of those records that a
consumer of committed records could read when the driver came by, one row per key, and none for a key with null as its
last value. What retention removed before is named as a gap; each record without a key, or with a value that does not
fit, is in the dead-letter table. The local worker changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from headrace.scan.tables.catalog import view_of
from headrace.scan.tables.looking import Condition
from headrace.scan.tables.state import Follows, OffsetGap, standing_of
from headrace.scan.tables.worker import KEPT_BY_SPARK, TableRound
from headrace.storage.errors import UnavailableError
from tests.scan.tables.history import FAILURES, ROUNDS_MAX, FickleFormats, expire_all_but_the_newest, rewrite
from tests.scan.tables.world import Killed, Tables
from tests.spark.table_driver import driver
from tests.spark.world import ScanWorld
from tests.transactional_world import Truth, Writer, send

_names = itertools.count()
KEYS = ("abcd", "efgh")
"""By partition, as a partitioner places them."""


class KeyedRow(NamedTuple):
    """What a table has of a key."""

    value: str | None
    partition: int
    offset: int


class KeyedHistory:
    """One topic with two partitions, and its keyed table. `spark`: a session, or LocalTasks."""

    def __init__(
        self, world: ScanWorld, folder: Path, spark: Any, rng: random.Random, *, is_valued: bool = False
    ) -> None:
        self.world, self.spark, self.rng, self.is_valued = world, spark, rng, is_valued
        self.tables = Tables(world, folder)
        self.tables.formats = FickleFormats(rng)
        self.truth = Truth()
        self.name = f"keyed{next(_names)}"

    async def tell(self, parts: int = 4) -> None:
        """Let it happen; AssertionError if the table is wrong."""
        self.keys = await self.world.topic(self.name, 2)
        key = "kafka.key" if self.is_valued else "key"
        layout = self.rng.choice([(), (f"bucket[2]({key})",), (f"bucket[3]({key})", "partition")])
        values = ("json",) if self.is_valued else ()
        await self.tables.create(self.name, layout=layout, values=values, is_keyed=True)
        for part in range(parts):
            await self._write(6)
            for _ in range(self.rng.randint(1, 3)):
                await self._round()
            await self._between(part)
        for _ in range(ROUNDS_MAX):
            if not (await self._follow()).has_more:
                return await self.check()
        raise AssertionError("the table does not come to rest")

    async def _write(self, steps: int) -> None:
        writers = [Writer(self.world, self.truth, f"writer-{n}-{self.rng.getrandbits(32)}") for n in range(2)]
        for writer in writers:
            await writer.begin()
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
        catalog, rng = self.tables.failing, self.rng
        catalog.next_failure = rng.choice(FAILURES)
        if rng.random() < 0.3:
            catalog.before_commit = self._other_driver(asyncio.get_running_loop())
        with contextlib.suppress(Killed, UnavailableError):
            await self._keep(self.tables, rng.choice([1, 200, 1 << 26]))
        catalog.next_failure, catalog.before_commit = "", None
        if rng.random() < 0.3:
            await self._local_worker()

    async def _keep(self, tables: Tables, split_bytes: int) -> TableRound:
        async with driver(self.spark, tables, split_bytes) as worker:
            worker.chunk_bytes = split_bytes
            return await worker.keep(self.name)

    async def _local_worker(self) -> None:
        before = self.tables.load(self.name).metadata
        done = await self.tables.round(self.name)
        if done.condition is Condition.FOLLOWING and before.current_snapshot_id is not None:
            assert (done.reason, done.outcome) == (KEPT_BY_SPARK, None)
            assert self.tables.load(self.name).metadata == before

    def _other_driver(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """A driver of another process gets to commit first; more records have arrived for it, or none."""
        other, more = self.tables.again(), self.rng.random() < 0.5
        other.formats = self.tables.formats

        async def work() -> None:
            if more:
                await self._write(2)
            with contextlib.suppress(UnavailableError):
                await self._keep(other, self.rng.choice([1, 200, 1 << 26]))

        return lambda: asyncio.run_coroutine_threadsafe(work(), loop).result()

    async def _between(self, part: int) -> None:
        draw = self.rng.random()
        if part == 1:
            await self.world.compact(1)
        if draw < 0.3:
            await asyncio.to_thread(rewrite, self.tables.load(self.name))
        if 0.15 < draw < 0.6:
            await asyncio.to_thread(expire_all_but_the_newest, self.tables.load(self.name))
        if 0.6 < draw < 0.75:
            await self.world.delete_records(self.rng.choice(self.keys), self.rng.randint(0, 4))

    async def _follow(self) -> TableRound:
        while True:
            try:
                return await self._keep(self.tables, self.rng.choice([1, 1 << 26]))
            except UnavailableError:
                continue

    async def check(self) -> None:
        """Compare with what was sent."""
        done = await self._follow()
        assert done.condition is Condition.FOLLOWING, done.reason
        table = self.tables.load(self.name)
        assert table.schema().identifier_field_names() == {"kafka.key" if self.is_valued else "key"}
        letters = self.tables.catalog.load_dead_letters(table)
        gaps: list[OffsetGap] = []
        for each in (table, letters):
            standing = None if each is None else standing_of(view_of(each))
            if standing is not None:
                assert isinstance(standing, Follows)
                gaps += standing.progress.gaps
        dead = {(partition, offset) for partition, offset, _, _ in self.tables.dead(self.name)}
        assert await asyncio.to_thread(self.rows) == self.expected(gaps, dead)

    def expected(self, gaps: list[OffsetGap], dead: set[tuple[int, int]]) -> dict[str, KeyedRow]:
        """The last values of the keys, without those that were lost and those that are dead letters."""
        found: dict[str, KeyedRow] = {}
        for index, key in enumerate(self.keys):
            for record in self.truth.committed(key):
                lost = any(gap.partition == index and gap.start <= record.offset < gap.end for gap in gaps)
                if (index, record.offset) in dead or lost:
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
