"""Checks the life of the metastore every few seconds, from the start of a process to its end.

Place: one per process, started before anything writes: by cli/process/shell.py, and by following.py.
Invariant: a check that fails changes nothing; the next one comes after CHECK_SECONDS. An old primary that is cut off
from its successor stays writable: processes that reach it learn from the bucket, at their next check, that its life
is over, and acknowledge nothing from then on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.verdict import LifeVerdict
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

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
