"""The loop that keeps all tables of a catalog: round after round, table after table.

Place: run by the role `tables` (cli/process/tables_role.py). Several processes may run it: they lose commits to each
other, and no row.
Invariant: a table that fails or is stopped holds up no other. After a round in which nothing was left, the loop waits
for tables.commit.interval.ms; after one that lost a commit to another worker, a random part of it more.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field

from headrace.scan.errors import ForeignTableError
from headrace.scan.tables.appending import CommitOutcome
from headrace.scan.tables.metrics import TableMetrics
from headrace.scan.tables.worker import Condition, TableRound, TableWorker
from headrace.storage.clock import Clock
from headrace.storage.errors import NotFoundError
from headrace.storage.supervision import Supervisor

logger = logging.getLogger(__name__)

EXPIRY_SECONDS = 3_600
"""The time between two looks for snapshots of a table that are too old."""
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
    last: dict[str, TableRound] = field(default_factory=dict)
    _expired_at: dict[str, float] = field(default_factory=dict)
    """The time of the last look at the snapshots of each table, in monotonic seconds."""

    async def run(self) -> None:
        """Keep every table of the namespace. Errors of the catalog end it: the supervisor starts it again."""
        while True:
            more = await self.turn()
            if not more:
                await self.clock.sleep(self.interval_ms / 1_000)

    async def turn(self) -> bool:
        """One turn of each table; whether something is left to append."""
        names = await asyncio.to_thread(self.worker.tables.catalog.names)
        for gone in self.last.keys() - set(names):
            del self.last[gone]
            self.metrics.forget(gone)
            self.supervisor.forget(f"table {gone}")
            self.supervisor.forget(f"expiry of {gone}")
            self._expired_at.pop(gone, None)
        more = False
        for name in names:
            if await self.supervisor.attempt(f"table {name}", lambda name=name: self._keep(name)):  # type: ignore[misc]
                more |= name in self.last and self.last[name].has_more
            if name in self.last and self._is_time_to_expire(name):
                await self.supervisor.attempt(f"expiry of {name}", lambda name=name: self._expire(name))  # type: ignore[misc]
        return more

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

    def _is_time_to_expire(self, name: str) -> bool:
        if not self.snapshot_max_age_ms or self.last[name].condition is Condition.STOPPED:
            return False  # what was rolled back may be what a user wants back
        at = self._expired_at.get(name)
        return at is None or self.clock.monotonic() - at >= EXPIRY_SECONDS

    async def _expire(self, name: str) -> None:
        self._expired_at[name] = self.clock.monotonic()
        before_ms = self.clock.wall_ms() - self.snapshot_max_age_ms
        count = await asyncio.to_thread(self.worker.expire, name, before_ms)
        if count:
            logger.info("snapshots expired: table=%s snapshots=%d", name, count)

    def _note(self, name: str, done: TableRound) -> None:
        before = self.last.get(name)
        if done.condition is not Condition.FOLLOWING and (before is None or before.reason != done.reason):
            logger.error("table is %s: table=%s reason=%s", done.condition.value, name, done.reason)
        if done.rows:
            logger.info("appended: table=%s records=%d lag=%d", name, done.rows, sum(done.lag.values()))
        if done.dead_letters:
            logger.warning("records do not fit: table=%s dead_letters=%d", name, done.dead_letters)
        self.last[name] = done
        self.metrics.done(name, done)
