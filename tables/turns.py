"""The turns of tables: each round has a share of time, and one that takes longer runs next to the other tables.

    a table's turn -> its round ends within the share    -> the next table
                   -> it does not                        -> the next table meanwhile; at most LONG_MAX rounds like this

Place: under follower.py.
Invariant: a table waits for another one's round at most for its share, unless more than LONG_MAX rounds take longer
than that; the time of each round is limited (values/apart/, log/chunks.py). A table has one round at a time. After a
long round a table rests for as long as it took, so several such tables do not fill all turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from headrace.storage.clock import Clock

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
