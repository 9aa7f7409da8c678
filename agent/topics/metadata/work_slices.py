"""Divides the work for a long answer into slices, between which the event loop runs other tasks.

Place: under the handlers of Metadata and DescribeTopicPartitions; a cluster may have 100,000 partitions and 1,000
agents, so that an answer takes a second.
Invariant: work is counted, not timed. A caller reports at least after each topic, each block of partitions and each
election of a leader, so a slice is at most UNITS_MAX units and one such step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

UNITS_MAX = 4_096
"""Units of a slice: a unit is about a microsecond of CPU, at most two."""
BLOCK = 1_024
"""Partitions or names that are handled at once: one unit each."""
TOPIC_UNITS = 8
"""What a topic costs besides its partitions, and what each decision of ACLs costs."""


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
