"""Checks the life of the metastore every few seconds, from the start of a process to its end.

Place: one per process, started before anything writes, by cli/process/shell.py. A process without roles (Spark's
driver, an export, a command) follows the life next to its connections (scan/cluster.py,
compactor/spark/application.py). `headrace migrate --restored` and `headrace audit --rebuild-index` first ask whether
agents use the metastore that the bucket names.
Invariant: a check that fails changes nothing; the next one comes after CHECK_SECONDS. An old primary that is cut off
from its successor stays writable: processes that reach it learn from the bucket, at their next check, that its life
is over, and acknowledge nothing from then on.
Invariant of a process without roles: it names a life only while bucket and server agree on it. It begins and records
none, because it may be of another version than the agents, or have the right to read the bucket only; so on a
promoted server it waits for an agent. What such a process acknowledges, it acknowledges after `require_current`: an
old primary that stays up accepts every call, and only the bucket knows that its life is over.
Invariant of the question whether agents run: reads the bucket only. Each cluster with an active controller replaces
the position of its life every few seconds, on any server; agents that have just begun a life do it within that time.
Agents without an active controller are not noticed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, Gauge

from headrace.metastore.api.life import LifeApi
from headrace.metastore.life.bucket import newest_life, position_changed_ms
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.verdict import LifeVerdict
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, InvalidError, UnavailableError
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
"""Each check is a GET of the bucket and a query."""
POSITION_CHECKS = 3
"""The position is written with every third check."""

REASONS = {
    LifeVerdict.BEGIN: "this server was promoted, and no agent has begun its life yet",
    LifeVerdict.SUPERSEDED: "another server is the metastore by now",
    LifeVerdict.RESTORED: "the metastore went back or was moved: run `headrace migrate --restored`",
    LifeVerdict.WRONG_BUCKET: "the bucket does not know this metastore's life: metastore.url or bucket is wrong",
    LifeVerdict.OTHER_BUCKET: "the metastore has its files in another bucket: correct bucket",
}


class LifeWatch:
    """`start` checks once, before anything is written."""

    def __init__(
        self,
        keeper: LifeKeeper,
        clock: Clock,
        registry: CollectorRegistry,
        notes_position: Callable[[], bool],
        on_change: Callable[[bool], None] = lambda is_current: None,
    ) -> None:
        """`notes_position`: is this the process that does? `on_change` is called when this process may write no longer,
        or again, or in another life."""
        self._keeper = keeper
        self._clock = clock
        self._notes_position = notes_position
        self._task: asyncio.Task[None] | None = None
        self._life: int | None = None
        """Of the newest check; None before the first."""
        self._on_change = on_change
        gauge = Gauge(
            "headrace_metastore_life_is_current",
            "1 if this process's server is the metastore, 0 if it writes nothing because it is not or went back",
            registry=registry,
        )
        gauge.set_function(lambda: float(self._keeper.verdict is LifeVerdict.CURRENT))

    async def start(self) -> None:
        """The first check; raises what prevented it. A server that is not the metastore does not prevent the start."""
        await self._check()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """No check after this."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def not_ready_reason(self) -> str | None:
        """Return why this process can write nothing; None if it can."""
        return REASONS.get(self._keeper.verdict)

    async def _check(self) -> None:
        is_current = await self._keeper.check() is LifeVerdict.CURRENT
        before, self._life = self._life, self._keeper.life
        if self._life != before and not (before is None and is_current):
            self._on_change(is_current)

    async def _run(self) -> None:
        number = 0
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            number += 1
            try:
                await self._check()
                if number % POSITION_CHECKS == 0 and self._notes_position():
                    await self._keeper.note_position()
            except HeadraceError as error:
                logger.warning("life of the metastore not checked: error=%s", error)
            except Exception:  # a bug: the next check may do better, and without checks a lost life stays unnoticed
                logger.exception("life of the metastore not checked")


class FollowedLife:
    """The life that these connections name."""

    def __init__(self, api: LifeApi, store: ObjectStore, clock: Clock, rng: random.Random) -> None:
        self.keeper = LifeKeeper(api, store, clock, rng, begins=False)

    async def require_current(self) -> int:
        """Compare now, and return the life. UnavailableError unless the server is the metastore; else as LifeKeeper."""
        await self.keeper.check()
        self.require_newest()
        return self.keeper.life

    def require_newest(self) -> None:
        """UnavailableError if the newest check found that the server is not the metastore."""
        if (verdict := self.keeper.verdict) is not LifeVerdict.CURRENT:
            raise UnavailableError(f"this Postgres may not be used: {REASONS[verdict]}: verdict={verdict.value}")


@asynccontextmanager
async def follow_life(
    api: LifeApi, store: ObjectStore, clock: Clock, rng: random.Random
) -> AsyncIterator[FollowedLife]:
    """Compare at once, then every CHECK_SECONDS until the context is left. Errors as FollowedLife.require_current."""
    followed = FollowedLife(api, store, clock, rng)
    watch = LifeWatch(followed.keeper, clock, CollectorRegistry(), notes_position=lambda: False)
    await watch.start()
    try:
        followed.require_newest()
        yield followed
    finally:
        await watch.stop()


WATCH_SECONDS = 2 * CHECK_SECONDS * POSITION_CHECKS + 1
"""Two positions are written meanwhile."""
LOOK_SECONDS = 0.5
LONG_AGO_MS = 600_000
"""An agent that runs replaces a position long before it has this age, also if the clocks differ by minutes."""


async def require_unused(store: ObjectStore, clock: Clock) -> None:
    """InvalidError if agents use the newest life. Waits WATCH_SECONDS, unless they stopped long ago."""
    newest = await newest_life(store, None)
    if newest is None:
        return
    before = await position_changed_ms(store, newest.life)
    if clock.wall_ms() - before > LONG_AGO_MS:
        return
    until = clock.monotonic() + WATCH_SECONDS
    while clock.monotonic() < until:
        await clock.sleep(LOOK_SECONDS)
        if await position_changed_ms(store, newest.life) != before:
            raise InvalidError(
                f"agents are running on the metastore that the bucket names: life={newest.life}"
                f" server={newest.system_identifier}/{newest.timeline}/{newest.database}: correct metastore.url if this"
                " is another one; else stop all agents first. With --force, what they acknowledge from now on is lost;"
                " nothing was changed"
            )
