"""The loop that keeps all tables of a catalog: round after round, table after table.

Place: run by the role `tables` (cli/process/tables_role.py). Several processes may run it: they lose commits to each
other, and no row.
Invariant: a table that fails or is stopped holds up no other. After a round in which nothing was left, the loop waits
for tables.commit.interval.ms, or for what a topic's table.commit.interval.ms says; after one that lost a commit to
another worker, a random part of it more.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.scan.errors import ForeignTableError
from headrace.scan.tables.appending import CommitOutcome
from headrace.scan.tables.declaring import TableDeclarer
from headrace.scan.tables.looking import Condition
from headrace.scan.tables.metrics import TableMetrics
from headrace.scan.tables.worker import TableRound, TableWorker
from headrace.storage.clock import Clock
from headrace.storage.errors import NotFoundError
from headrace.storage.supervision import Supervisor

logger = logging.getLogger(__name__)

EXPIRY, ORPHANS = "expiry", "orphan files"
"""Kinds of upkeep, as the supervisor calls them."""
EXPIRY_SECONDS = 3_600
"""The time between two looks for snapshots of a table that are too old."""
ORPHANS_SECONDS = 86_400
"""The time between two looks for files of a table that no commit has: each reads every manifest."""
COMMITS_IN_A_ROW = 8
"""Commits of one table before the others have their turn."""


@dataclass(slots=True)
class TableFollower:
    """`run` until it is cancelled. `last` has the newest round of each table, for people."""

    worker: TableWorker
    metrics: TableMetrics
    supervisor: Supervisor
    clock: Clock
    rng: random.Random
    interval_ms: int
    snapshot_max_age_ms: int = 0
    """Snapshots that are older expire; 0: none."""
    orphan_min_age_ms: int = 0
    """Files that no commit has are removed if the store took a committed one so much later; 0: none."""
    last: dict[str, TableRound] = field(default_factory=dict)
    declarer: TableDeclarer | None = None
    """None: topic configs make no tables."""
    refused: dict[str, str] = field(default_factory=dict)
    """By topic, why its configs made no table in the newest turn."""
    _due: dict[str, float] = field(default_factory=dict)
    """The time of the next round of each table that waits for it, in monotonic seconds."""
    _looked_at: dict[tuple[str, str], float] = field(default_factory=dict)
    """The time of the last upkeep of each kind and table, in monotonic seconds."""

    async def run(self) -> None:
        """Keep every table of the namespace. Errors of the catalog end it: the supervisor starts it again."""
        while True:
            more = await self.turn()
            if not more:
                await self.clock.sleep(self._pause_seconds())

    def _pause_seconds(self) -> float:
        """The time until a table is due, at most the process's interval: then it looks for new tables."""
        now = self.clock.monotonic()
        return max(0.0, min([self.interval_ms / 1_000, *(due - now for due in self._due.values())]))

    async def turn(self) -> bool:
        """One turn of each table; whether something is left to append."""
        names = await asyncio.to_thread(self.worker.tables.catalog.names)
        if self.declarer is not None and await self._declare(self.declarer, names):
            names = await asyncio.to_thread(self.worker.tables.catalog.names)
        for gone in self.last.keys() - set(names):
            del self.last[gone]
            self._due.pop(gone, None)
            self.metrics.forget(gone)
            self.supervisor.forget(f"table {gone}")
            for work in (EXPIRY, ORPHANS):
                self.supervisor.forget(f"{work} of {gone}")
                self._looked_at.pop((work, gone), None)
        more = False
        for name in names:
            if self._due.get(name, 0.0) > self.clock.monotonic():
                continue
            self._due.pop(name, None)
            if await self.supervisor.attempt(f"table {name}", lambda name=name: self._keep(name)):  # type: ignore[misc]
                more |= name in self.last and self.last[name].has_more
            await self._upkeep(name)
        return more

    async def _declare(self, declarer: TableDeclarer, names: Sequence[str]) -> bool:
        """Make the tables that topic configs declare; whether one may be new."""
        made, refused = await declarer.make(names)
        for topic, reason in refused.items():
            if self.refused.get(topic) != reason:
                logger.error("topic configs make no table: topic=%s reason=%s", topic, reason)
        self.refused = refused
        self.metrics.show_refused(len(refused))
        return made

    async def _keep(self, name: str) -> None:
        for _ in range(COMMITS_IN_A_ROW):
            try:
                done = await self.worker.keep(name)
            except (NotFoundError, ForeignTableError):
                return  # dropped meanwhile, or not of a topic
            self._note(name, done)
            if done.outcome is CommitOutcome.CONFLICT:
                await self.clock.sleep(self.rng.random() * self.interval_ms / 1_000)
            if not done.has_more:
                return

    async def _upkeep(self, name: str) -> None:
        """Remove old snapshots and orphan files, if it is time; a failure is tried again at the next time."""
        if name not in self.last or self.last[name].condition is Condition.STOPPED:
            return  # what was rolled back may be what a user wants back
        if self.snapshot_max_age_ms and self._is_time(EXPIRY, name, EXPIRY_SECONDS):
            await self.supervisor.attempt(f"{EXPIRY} of {name}", lambda: self._expire(name))
        if self.orphan_min_age_ms and self._is_time(ORPHANS, name, ORPHANS_SECONDS):
            await self.supervisor.attempt(f"{ORPHANS} of {name}", lambda: self._remove_orphans(name))

    def _is_time(self, work: str, name: str, seconds: float) -> bool:
        """Return whether so many seconds passed since the last time; if so, it is now the last time."""
        at, now = self._looked_at.get((work, name)), self.clock.monotonic()
        if at is not None and now - at < seconds:
            return False
        self._looked_at[work, name] = now
        return True

    async def _expire(self, name: str) -> None:
        before_ms = self.clock.wall_ms() - self.snapshot_max_age_ms
        count = await asyncio.to_thread(self.worker.expire, name, before_ms)
        if count:
            logger.info("snapshots expired: table=%s snapshots=%d", name, count)

    async def _remove_orphans(self, name: str) -> None:
        count = await asyncio.to_thread(self.worker.remove_orphans, name, self.orphan_min_age_ms)
        if count:
            logger.info("orphan files removed: table=%s files=%d", name, count)

    def _note(self, name: str, done: TableRound) -> None:
        before = self.last.get(name)
        if done.condition is not Condition.FOLLOWING and (before is None or before.reason != done.reason):
            logger.error("table is %s: table=%s reason=%s", done.condition.value, name, done.reason)
        if done.rows:
            logger.info("appended: table=%s records=%d lag=%d", name, done.rows, sum(done.lag.values()))
        if done.dead_letters:
            logger.warning("records do not fit: table=%s dead_letters=%d", name, done.dead_letters)
        self.last[name] = done
        if done.interval_ms is None or done.has_more:
            self._due.pop(name, None)
        else:
            self._due[name] = self.clock.monotonic() + done.interval_ms / 1_000
        self.metrics.done(name, done)
