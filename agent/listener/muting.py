"""A connection with a client over its quota is not read for a while.

Place: part of connection.py; the answer with the throttle time has been made.
Invariant: reading continues once nothing is owed. The debt is looked at again every second, because a quota may be
raised, and other agents may use more or less.
Source: KIP-219.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.agent.access.quotas.enforcement import QuotaEnforcer, RequestUse
from headrace.agent.listener.replies import Slot
from headrace.protocol.request import Request

if TYPE_CHECKING:
    from headrace.agent.listener.host import ConnectionHost

_LEAST_SECONDS, _MOST_SECONDS = 0.001, 1.0
"""Shortest and longest time between two looks at a debt."""


def _nothing() -> None:
    """The connection has ended."""


class Muting:
    """Muting of one connection."""

    def __init__(self, host: ConnectionHost, on_end: Callable[[], None]) -> None:
        self._host, self._on_end = host, on_end
        self.is_on = False

    def charge(self, slot: Slot, request: Request, size_bytes: int, quotas: QuotaEnforcer) -> None:
        """The request of this slot was read."""
        slot.use = quotas.arrived(request, size_bytes)
        if slot.use is not None and (seconds := slot.use.wait()):
            self.begin(slot.use, seconds)

    def settle(self, slot: Slot) -> None:
        """The answer of this slot is made."""
        if seconds := slot.throttle():
            self.begin(slot.use, seconds)

    def begin(self, use: RequestUse | None, seconds: float) -> None:
        """Mute for so long, or as long as `use` owes something. Nothing changes if it is muted."""
        if not self.is_on:
            self.is_on = True
            waiting = asyncio.get_running_loop().create_task(self._wait(use, seconds))
            self._host.muted.add(waiting)
            waiting.add_done_callback(self._host.muted.discard)

    def stop(self) -> None:
        """The connection ends: there is nothing to wait for."""
        self.is_on = False

    def release(self) -> None:
        """The connection has ended: hold no reference to it."""
        self.stop()
        self._on_end = _nothing

    async def _wait(self, use: RequestUse | None, seconds: float) -> None:
        while seconds > 0 and self.is_on:
            nap = min(max(seconds, _LEAST_SECONDS), _MOST_SECONDS)
            await self._host.clock.sleep(nap)
            seconds = seconds - nap if use is None else use.wait()
        if self.is_on:
            self.is_on = False
            self._on_end()
