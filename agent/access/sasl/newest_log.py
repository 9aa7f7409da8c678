"""The metadata log, read before a login: users, passwords and tokens that another agent has just stored.

Place: between SaslHandshake and the agent's image of the cluster.
Invariant: a login waits for a read that begins after its handshake arrived, but not longer than catch_up_briefly does.
A client needs no password for a handshake and can repeat it, so the reads of one agent begin at least INTERVAL_SECONDS
apart: the logins that wait share the next one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from headrace.agent.cluster.brief_catch_up import catch_up_briefly
from headrace.metastore.log.image import MetadataImage
from headrace.storage.clock import Clock

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.1
"""Clients log in rarely, and only those that come together wait for so long."""


class NewestLog:
    """One per agent."""

    def __init__(self, catch_up: Callable[[], Awaitable[MetadataImage]], clock: Clock) -> None:
        """`catch_up`: with the metadata log."""
        self._catch_up, self._clock = catch_up, clock
        self._next: asyncio.Task[None] | None = None
        """A read that has not begun."""
        self._may_begin_at = -math.inf

    async def see(self) -> None:
        """Return when the image has what was in the log before this call, or the metastore does not answer."""
        if self._next is None:
            self._next = asyncio.create_task(self._read())
        await asyncio.shield(self._next)

    async def _read(self) -> None:
        await self._clock.sleep(self._may_begin_at - self._clock.monotonic())
        self._next, self._may_begin_at = None, self._clock.monotonic() + INTERVAL_SECONDS
        error = await catch_up_briefly(self._catch_up, self._clock)
        if error is not None:
            logger.warning("authentication without the log's head: error=%s", error)
