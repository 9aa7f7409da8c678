"""Puts into the bucket of what only this agent knows, when a life of the metastore is over or the agent stops.

Place: under the agent's fetch/loss_notes.py and groups/share/answered.py. No client waits for these puts.
Invariant: a put that fails is repeated for SAVE_S, and once more when the agent stops: an agent that is killed before
takes away what it knew. A put may come twice, so it must be one that replaces itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine

from headrace.storage.clock import Clock, within
from headrace.storage.errors import HeadraceError

SAVE_S = 600.0
SAVE_PAUSE_S, SAVE_PAUSE_S_MAX = 0.5, 5.0
"""Short: the agent may end at any time."""

logger = logging.getLogger(__name__)


class InsistentPuts:
    """`start` may be called at any time on the loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._working: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Do it in the background; it may call `insist`."""
        task = asyncio.get_running_loop().create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def insist(self, put: Callable[[], Awaitable[None]], what: str) -> bool:
        """Return whether the bucket has it. `what` is for the log."""
        until, pause = self._clock.monotonic() + SAVE_S, SAVE_PAUSE_S
        while True:
            is_last = self._closing.is_set()
            try:
                await put()
            except HeadraceError as error:
                is_last = is_last or self._clock.monotonic() >= until
                logger.warning("%s: %s error=%s", "not saved" if is_last else "not saved yet", what, error)
            else:
                return True
            if is_last:
                return False
            with contextlib.suppress(TimeoutError):
                await within(self._clock, pause, self._closing.wait())
            pause = min(2 * pause, SAVE_PAUSE_S_MAX)

    async def close(self, timeout_s: float | None = None) -> None:
        """What is not saved gets one more try; return when all is done, or after `timeout_s`."""
        self._closing.set()
        if self._working:
            await asyncio.wait(self._working, timeout=timeout_s)
