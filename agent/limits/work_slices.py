"""Divides the work for a long answer into slices, between which the event loop runs other tasks.

Place: under the handlers that list what a cluster has, or that elect many agents; a cluster may have 100,000 partitions
and 1,000 agents, so that an answer takes seconds. The listener writes long answers in slices, too.
Invariant: work is counted, not timed. A caller reports at least after each topic, each block of partitions and each
election of a leader, so a slice is at most UNITS_MAX units and one such step.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

UNITS_MAX = 4_096
"""Units of a slice: a unit is about a microsecond of CPU, at most two."""
BLOCK = 1_024
"""Partitions or names that are handled at once: one unit each."""
TOPIC_UNITS = 8
"""What a topic costs besides its partitions, and what each decision of ACLs costs."""
ELEMENT_UNITS = 4
"""What it costs to make an element of an answer."""


async def let_others_run() -> None:
    """Let the event loop run what is ready."""
    await asyncio.sleep(0)


class WorkSlices:
    """The slices of one answer."""

    def __init__(self, pause: Callable[[], Awaitable[object]] = let_others_run, units_max: int = UNITS_MAX) -> None:
        self._pause, self._units_max = pause, units_max
        self._units = 0
        self.has_paused = False
        """Whether other tasks ran since the work began: the image may be another one."""

    async def did(self, units: int) -> None:
        """Count work that was done; pause if the slice is full."""
        self._units += units
        if self._units >= self._units_max:
            self._units = 0
            self.has_paused = True
            await self._pause()

    async def each(self, make: Callable[[T], R], items: Iterable[T], units: int = ELEMENT_UNITS) -> tuple[R, ...]:
        """Return `make` of each item, in order; each costs so many units."""
        made = []
        for item in items:
            made.append(make(item))
            await self.did(units)
        return tuple(made)

    async def in_order(self, items: Sequence[T], key: Callable[[T], Any] | None = None, units: int = 1) -> list[T]:
        """Return the items in order; each costs so many units, twice if there are more than a block."""
        block = max(1, BLOCK // units)
        blocks = []
        for first in range(0, len(items), block):
            some = items[first : first + block]
            blocks.append(sorted(some, key=key))  # type: ignore[type-var, arg-type]
            await self.did(units * len(some))
        if len(blocks) <= 1:
            return blocks[0] if blocks else []
        return list(await self.each(_itself, heapq.merge(*blocks, key=key), units))  # type: ignore[arg-type]


def _itself(item: T) -> T:
    return item
