"""The loop that keeps all tables of a catalog: round after round, table after table.

Place: run by the role `tables` (cli/process/tables_role.py). Several processes may run it: they lose commits to each
other, and no row. Upkeep is not done here: the loop sees to it that each table has its jobs (upkeep/jobs.py).

  a table's turn -> its round ends within the share    -> the next table
                 -> it does not                        -> the next table meanwhile; at most LONG_MAX rounds like this

Invariant of turns: a table waits for another one's round at most for its share, unless more than LONG_MAX rounds
take longer than that; the time of each round is limited (values/apart/, log/chunks.py). A table has one round at a
time. After a long round a table rests for as long as it took, so several such tables do not fill all turns.
Invariant: a table that fails, is stopped, or takes long holds up no other. After a round in which nothing was left,
the loop waits for tables.commit.interval.ms, or for what a topic's table.commit.interval.ms says; after one that
lost a commit to another worker, a random part of it more.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from headrace.config.settings import Settings
from headrace.storage.clock import Clock
from headrace.storage.errors import NotFoundError
from headrace.storage.supervision import Supervisor
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.creating import TableDeclarer
from headrace.tables.errors import ForeignTableError
from headrace.tables.looking import Condition
from headrace.tables.metrics import TableMetrics
from headrace.tables.upkeep.jobs import UpkeepSchedule
from headrace.tables.worker import TableRound, TableWorker

logger = logging.getLogger(__name__)

SHARE_SECONDS = 10.0
LONG_MAX = 1
"""Rounds that run next to the turns: each has a chunk in memory."""


@dataclass(slots=True)
class TableTurns:
    """The rounds that are running."""

    clock: Clock
    share_seconds: float = SHARE_SECONDS
    """Infinite: each round is waited for."""
    _running: dict[str, asyncio.Task[bool]] = field(default_factory=dict)
    _began: dict[str, float] = field(default_factory=dict)
    _rests_until: dict[str, float] = field(default_factory=dict)
    _errors: list[BaseException] = field(default_factory=list)
    """Errors of rounds that took longer than their share."""

    def may_begin(self, name: str) -> bool:
        """Return whether the table has no round, and need not rest."""
        return name not in self._running and self._rests_until.get(name, 0.0) <= self.clock.monotonic()

    async def take(self, name: str, step: Callable[[], Awaitable[bool]]) -> bool:
        """Return what the step returns; False if it takes longer than the share."""
        if self._errors:
            raise self._errors.pop()
        task = self._running[name] = asyncio.ensure_future(self._timed(name, step))
        if not await self._within(task):
            task.add_done_callback(self._note)
            logger.warning(
                "a round takes long, other tables have their turns: table=%s seconds=%.0f", name, self.share_seconds
            )
            while len(self._running) > LONG_MAX:
                await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
            return False
        return task.result()

    def _note(self, task: asyncio.Task[bool]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors.append(error)

    async def _timed(self, name: str, step: Callable[[], Awaitable[bool]]) -> bool:
        began = self._began[name] = self.clock.monotonic()
        try:
            return await step()
        finally:
            del self._running[name], self._began[name]
            took = self.clock.monotonic() - began
            self._rests_until[name] = self.clock.monotonic() + (took if took > self.share_seconds else 0.0)

    async def _within(self, task: asyncio.Task[bool]) -> bool:
        """Wait for the share; whether the task has ended."""
        share = asyncio.ensure_future(self.clock.sleep(self.share_seconds))
        try:
            await asyncio.wait({task, share}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            share.cancel()
        return task.done()

    def is_over(self, name: str) -> bool:
        """Return whether the table's round has used up its share."""
        began = self._began.get(name)
        return began is not None and self.clock.monotonic() - began >= self.share_seconds

    def long(self) -> dict[str, float]:
        """Return the seconds of each round that takes longer than its share."""
        now = self.clock.monotonic()
        return {name: now - began for name, began in self._began.items() if self.is_over(name)}

    def next_seconds(self) -> float | None:
        """Return how long until a table has rested; None: none rests."""
        now = self.clock.monotonic()
        return min((until - now for until in self._rests_until.values() if until > now), default=None)

    async def any_ends(self, seconds: float) -> None:
        """Wait for so long, or until a round ends."""
        share = asyncio.ensure_future(self.clock.sleep(seconds))
        try:
            await asyncio.wait({share, *self._running.values()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            share.cancel()

    async def close(self) -> None:
        """Cancel all rounds."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def forget(self, name: str) -> None:
        """The table was dropped."""
        self._rests_until.pop(name, None)


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
    upkeep: UpkeepSchedule | None = None
    """None: this process asks for no jobs."""
    last: dict[str, TableRound] = field(default_factory=dict)
    declarer: TableDeclarer | None = None
    """None: topic configs make no tables."""
    refused: dict[str, str] = field(default_factory=dict)
    """Reasons by topic: why its configs made no table in the newest turn."""
    _failed: set[str] = field(default_factory=set)
    """Tables of which a round has failed."""
    _due: dict[str, float] = field(default_factory=dict)
    """The time of the next round of each table that waits for it, in monotonic seconds."""
    share_seconds: float = SHARE_SECONDS
    """How long a round may take before the other tables have their turns."""
    turns: TableTurns = field(init=False)

    def __post_init__(self) -> None:
        self.turns = TableTurns(self.clock, self.share_seconds)

    @classmethod
    def of(
        cls,
        settings: Settings,
        worker: TableWorker,
        metrics: TableMetrics,
        supervisor: Supervisor,
        upkeep: UpkeepSchedule,
        share_seconds: float = SHARE_SECONDS,
    ) -> TableFollower:
        """Return the loop of a process: it asks for jobs, and makes the tables that topic configs declare.
        `share_seconds`: infinite, so that each round is waited for, in a process that ends with its turns.
        """
        tables, cluster = worker.tables, worker.tables.cluster
        return cls(
            worker,
            metrics,
            supervisor,
            cluster.clock,
            cluster.rng,
            interval_ms=settings.tables_commit_interval_ms,
            upkeep=upkeep,
            declarer=TableDeclarer(cluster, tables.topics, tables.catalog),
            share_seconds=share_seconds,
        )

    async def run(self) -> None:
        """Keep every table of the namespace. Errors of the catalog end it: the supervisor starts it again."""
        try:
            while True:
                if not await self.turn():
                    await self.turns.any_ends(self._pause_seconds())
        finally:
            await self.turns.close()

    def _pause_seconds(self) -> float:
        """The time until a table is due, at most the process's interval: then it looks for new tables."""
        now, rested = self.clock.monotonic(), self.turns.next_seconds()
        waits = [self.interval_ms / 1_000, *(due - now for due in self._due.values())]
        return max(0.0, min(waits if rested is None else [*waits, rested]))

    async def turn(self) -> bool:
        """One turn of each table; whether something is left to append."""
        names = await asyncio.to_thread(self.worker.tables.catalog.names)
        if self.declarer is not None and await self._declare(self.declarer, names):
            names = await asyncio.to_thread(self.worker.tables.catalog.names)
        for gone in (self.last.keys() | self._failed) - set(names):
            self.last.pop(gone, None)
            self._failed.discard(gone)
            self._due.pop(gone, None)
            self.turns.forget(gone)
            self.metrics.forget(gone)
            self.supervisor.forget(f"table {gone}")
            if self.upkeep is not None:
                self.upkeep.forget(gone)
        more = False
        for name in names:
            if self._due.get(name, 0.0) > self.clock.monotonic() or not self.turns.may_begin(name):
                continue
            self._due.pop(name, None)
            if await self.turns.take(name, partial(self._attempt, name)):
                more |= name in self.last and self.last[name].has_more
        if self.upkeep is not None:
            await self.supervisor.attempt("jobs of tables", self._ask_for_jobs)
        return more

    async def _attempt(self, name: str) -> bool:
        return await self.supervisor.attempt(f"table {name}", partial(self._keep, name))

    async def _ask_for_jobs(self) -> None:
        """Ask for the jobs of all tables but stopped ones: what was rolled back may be what a user wants back."""
        assert self.upkeep is not None
        await self.upkeep.ask(name for name, last in self.last.items() if last.condition is not Condition.STOPPED)

    async def _declare(self, declarer: TableDeclarer, names: Sequence[str]) -> bool:
        """Make the tables that topic configs declare, and return whether any table was made.

        `names`: the tables that the catalog has. The reason why a topic gets no table is logged when it changes.
        """
        was_any_made, reasons = await declarer.make(names)
        for topic, reason in reasons.items():
            if self.refused.get(topic) != reason:
                logger.error("topic configs make no table: topic=%s reason=%s", topic, reason)
        self.refused = reasons
        self.metrics.show_refused(len(reasons))
        return was_any_made

    async def _keep(self, name: str) -> None:
        for _ in range(COMMITS_IN_A_ROW):
            try:
                done = await self.worker.keep(name)
            except (NotFoundError, ForeignTableError):
                return  # dropped meanwhile, or not of a topic
            except Exception:
                self._failed.add(name)
                self.metrics.failed(name)
                raise
            self._note(name, done)
            if done.outcome is CommitOutcome.CONFLICT:
                await self.clock.sleep(self.rng.random() * self.interval_ms / 1_000)
            if not done.has_more or self.turns.is_over(name):
                return

    def _note(self, name: str, done: TableRound) -> None:
        before = self.last.get(name)
        if done.condition is not Condition.FOLLOWING and (before is None or before.reason != done.reason):
            level = logging.INFO if done.condition is Condition.DETACHED else logging.ERROR
            logger.log(level, "table is %s: table=%s reason=%s", done.condition.value, name, done.reason)
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
