"""Random histories of a table: its workers are killed, or hang while others commit, and orphan files are removed at any
time, also while a commit is under way.

Time: the store's. `advance` moves it; a file gets the time at which it is seen first.
Invariant checked: what every snapshot names is there; the table has each record once; at the end no file of a worker is
left that no snapshot names.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

from headrace.storage.errors import UnavailableError
from headrace.tables.commit.file_names import file_prefix
from headrace.tables.upkeep import orphans
from tests.spark.world import ScanWorld
from tests.tables.history import expire_all_but_the_newest, rewrite
from tests.tables.world import Killed, Tables, from_a_thread

HOUR_MS = 3_600_000
MIN_AGE_MS = 24 * HOUR_MS
FAILURES = ("", "", "before", "before", "after", "lost", "away")
_names = itertools.count()


class StoreTime:
    """The times of the files below a warehouse."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._now_ms = folder, 1_800_000_000_000
        self._known: set[Path] = set()

    def advance(self, hours: float) -> None:
        self.settle()
        self._now_ms += int(hours * HOUR_MS)

    def settle(self) -> None:
        """Give the files that are new the time of now."""
        for path in set(self._folder.rglob("*.parquet")) - self._known:
            os.utime(path, ns=(self._now_ms * 1_000_000, self._now_ms * 1_000_000))
            self._known.add(path)


class OrphanHistory:
    """One topic with one partition, and its table."""

    def __init__(self, world: ScanWorld, tables: Tables, rng: random.Random) -> None:
        self.world, self.tables, self.rng = world, tables, rng
        self.name = f"t{next(_names)}"
        self.time = StoreTime(tables.folder / "warehouse")
        self.removed = 0

    async def tell(self, rounds: int = 8) -> None:
        """Let it happen; AssertionError if a file is missing or left."""
        (self.key,) = await self.world.topic(self.name, 1)
        await self.tables.create(self.name, layout=self.rng.choice([(), ("partition",)]))
        self.number = itertools.count()
        for _ in range(rounds):
            await self._write()
            await self._round()
            self.time.advance(self.rng.choice([0, 1, 12, 30]))
            await self._between()
            await asyncio.to_thread(self.check)
        self.tables.failing.next_failure, self.tables.failing.before_commit = "", None
        self.time.advance(30)
        await self._write()
        await self._follow()
        self.time.settle()
        self.remove()
        await asyncio.to_thread(self.check)
        await self.tables.check(self.name)
        left = await asyncio.to_thread(self.unnamed)
        assert left == set(), f"orphans are left: {left}"

    async def _write(self) -> None:
        await self.world.write(self.key, next(self.number), count=1)

    async def _round(self) -> None:
        catalog = self.tables.failing
        catalog.next_failure = self.rng.choice(FAILURES)
        if self.rng.random() < 0.6:
            catalog.before_commit = self._meanwhile()
        with contextlib.suppress(Killed, UnavailableError):
            await self.tables.round(self.name)
        catalog.next_failure, catalog.before_commit = "", None

    def _meanwhile(self) -> Callable[[], None]:
        """The commit hangs for hours or days; others work in the meantime, or not."""
        other = self.tables.again()

        async def work() -> None:
            self.time.advance(self.rng.choice([1, 12, 30, 60]))
            if self.rng.random() < 0.6:
                other.failing.next_failure = self.rng.choice(["", "before"])
                with contextlib.suppress(Killed, UnavailableError):
                    await other.round(self.name)
            if self.rng.random() < 0.2:
                await asyncio.to_thread(rewrite, other.load(self.name))
            self.time.settle()
            await asyncio.to_thread(self.remove)

        return from_a_thread(work)

    async def _between(self) -> None:
        draw = self.rng.random()
        if draw < 0.2:
            await asyncio.to_thread(rewrite, self.tables.load(self.name))
        elif draw < 0.4:
            await asyncio.to_thread(expire_all_but_the_newest, self.tables.load(self.name))
        elif draw < 0.8:
            self.time.settle()
            await asyncio.to_thread(self.remove)

    async def _follow(self) -> None:
        while (await self.tables.round(self.name)).has_more:
            pass

    def remove(self) -> None:
        """Do what the worker does once a day."""
        other = self.tables.again()
        table = other.load(self.name)
        self.removed += orphans.remove_orphans(table, lambda: other.load(self.name), MIN_AGE_MS)

    def check(self) -> None:
        """Every file of every snapshot is there."""
        table = self.tables.load(self.name)
        there = {path.name for path in self.tables.files()}
        for snapshot in table.metadata.snapshots:
            planned = table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
            named = {orphans.name_in(task.file.file_path) for task in planned}
            assert named <= there, f"files of snapshot {snapshot.snapshot_id} are gone: {named - there}"

    def unnamed(self) -> set[str]:
        """Files of workers that no snapshot has."""
        table = self.tables.load(self.name)
        prefix = file_prefix(table.metadata.table_uuid)
        there = {path.name for path in self.tables.files() if path.name.startswith(prefix)}
        return there - orphans.NamedByMetadata().of_all(table)
