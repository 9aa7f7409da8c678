"""Random histories of a table with upkeep next to its writers: rewrites, deletions of rows and expiry that are killed,
lose answers, and meet appends, another upkeep, or an expiry between two of their steps.

Invariant checked: as history.py, without the rows that were deleted: a rewrite loses and doubles no row, a deletion
takes those of its condition and no other, and nothing of either comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

from pyiceberg.expressions.parser import parse
from pyiceberg.table import Table

from headrace.storage.errors import UnavailableError
from headrace.tables.catalog import view_of
from headrace.tables.commit.snapshots import KnownManifests
from headrace.tables.state import Follows, standing_of
from headrace.tables.upkeep.deleting import RowDeletion
from headrace.tables.upkeep.replacing import Replacer
from headrace.tables.upkeep.steps import TableUpkeep, UpkeepTerms
from tests.spark.world import ScanWorld
from tests.tables.history import FAILURES, AppendHistory, expire_all_but_the_newest
from tests.tables.upkeep.orphan_history import MIN_AGE_MS, OrphanHistory
from tests.tables.world import Killed, Tables, from_a_thread
from tests.transactional_world import Truth

NOW_MS = 1 << 50
"""Later than each snapshot: every partition is settled, and every replaced snapshot expires."""


class KeptRecords(Truth):
    """What was sent, without what was deleted from the table. `deleted`: the offsets below, by partition's key."""

    def __init__(self, deleted: dict[int, int]) -> None:
        super().__init__()
        self.deleted = deleted

    def committed(self, key: int, start: int = 0) -> list:  # type: ignore[type-arg]
        return super().committed(key, max(start, self.deleted.get(key, 0)))


class UpkeepHistory(AppendHistory):
    """One topic with two partitions, and its table, with upkeep."""

    def __init__(self, world: ScanWorld, tables: Tables, rng: random.Random, *, is_valued: bool = False) -> None:
        super().__init__(world, tables, rng, is_valued=is_valued)
        self.deleted: dict[int, int] = {}
        self.truth = KeptRecords(self.deleted)

    async def _round(self) -> None:
        catalog, rng = self.tables.failing, self.rng
        for _ in range(rng.randint(2, 4)):
            await super()._round()
        catalog.next_failure = rng.choice(FAILURES)
        if rng.random() < 0.7:
            catalog.before_commit = self._other_process() if rng.random() < 0.4 else self._other_upkeep()
        work = self._delete if not self.is_valued and rng.random() < 0.3 else self._do_upkeep
        with contextlib.suppress(Killed, UnavailableError):
            await asyncio.to_thread(work, self.tables)
        catalog.next_failure, catalog.before_commit = "", None

    def _other_upkeep(self) -> Callable[[], None]:
        """A worker that has lost its lease, and does not know it."""
        other = self.tables.again()

        def work() -> None:
            self._do_upkeep(other)
            if self.rng.random() < 0.3:
                expire_all_but_the_newest(other.load(self.name))

        return work

    def _do_upkeep(self, tables: Tables) -> None:
        terms = UpkeepTerms(files_min=2, rewrite_bytes=self.rng.choice([20_000, 1 << 26]), snapshot_max_age_ms=1)
        TableUpkeep(tables.catalog, terms).keep(self.name, self.rng.choice([0, NOW_MS]))

    def _delete(self, tables: Tables) -> None:
        """Delete what one partition has up to somewhere; what comes later stays."""
        standing = standing_of(view_of(self._load()))
        if not isinstance(standing, Follows) or not standing.progress.positions:
            return
        partition, position = self.rng.choice(sorted(standing.progress.positions.items()))
        below = self.rng.randint(0, position.offset)
        key = self.keys[partition]
        self.deleted[key] = max(below, self.deleted.get(key, 0))
        self._delete_below(tables, partition, self.deleted[key])

    def _delete_below(self, tables: Tables, partition: int, offset: int) -> None:
        condition = parse(f"partition == {partition} and offset < {offset}")
        RowDeletion(condition).delete(Replacer(lambda: tables.load(self.name), KnownManifests()))

    def _load(self) -> Table:
        return self.tables.load(self.name)

    async def check(self) -> None:
        """Ends what was killed, and compares."""
        await self._follow()
        for key, offset in self.deleted.items():
            await asyncio.to_thread(self._delete_below, self.tables, self.keys.index(key), offset)
        await asyncio.to_thread(self._do_upkeep, self.tables)
        await super().check()


class HangingRewrites(OrphanHistory):
    """Commits of rewrites hang for hours or days, while others commit, and orphan files are removed."""

    async def _round(self) -> None:
        await super()._round()
        catalog = self.tables.failing
        catalog.next_failure = self.rng.choice(("", "", "before", "lost"))
        if self.rng.random() < 0.8:
            catalog.before_commit = self._hang()
        with contextlib.suppress(Killed, UnavailableError):
            await asyncio.to_thread(self._keep)
        catalog.next_failure, catalog.before_commit = "", None

    def _hang(self) -> Callable[[], None]:
        """The commit of a rewrite hangs; an append is first, and orphans are removed then, or before the next attempt
        takes effect.
        """
        other, catalog = self.tables.again(), self.tables.failing

        async def work() -> None:
            self.time.advance(self.rng.choice([1, 12, 30, 60]))
            await self._write()
            with contextlib.suppress(UnavailableError):
                await other.follow(self.name)
            self.time.settle()
            if self.rng.random() < 0.5:
                await asyncio.to_thread(self.remove)
            else:
                catalog.before_commit = self.remove

        return from_a_thread(work)

    def _keep(self) -> None:
        terms = UpkeepTerms(files_min=2, snapshot_max_age_ms=1, orphan_min_age_ms=MIN_AGE_MS)
        TableUpkeep(self.tables.catalog, terms).keep(self.name, NOW_MS)
