"""Transactions in the first partition of a share schedule, one after the other: what is open, and what was aborted.

Place: a part of ShareWorld in schedules that have them. All that is written there while one is open belongs to it.
Invariant: the last stable offset never falls.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.shares.world import ShareWorld


class Transactions:
    """`read_committed` groups get records before the last stable offset, and none of aborted transactions."""

    def __init__(self, world: ShareWorld, key: int) -> None:
        self._world, self._key = world, key
        self._rng = random.Random(f"{world.seed} transactions")
        self._openings: list[tuple[float, int | None]] = [(0.0, None)]
        """Since when which transaction is open, by its first offset; None: none is."""
        self._aborted: list[range] = []

    def stable_end(self, key: int, end: int, time: float) -> int:
        """Return the last stable offset of a partition that ended there at this time."""
        opened = next(first for at, first in reversed(self._openings) if at <= time or not at)
        return end if key != self._key or opened is None else min(end, opened)

    def is_aborted(self, key: int, offset: int) -> bool:
        """Return whether the record belongs to an aborted transaction."""
        return key == self._key and any(offset in each for each in self._aborted)

    async def run(self) -> None:
        """Begin and end transactions while there is trouble."""
        world, log = self._world, self._world.logs[self._key]
        while not world.is_calm:
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))
            first = log.end
            self._openings.append((world.loop.time(), first))
            await asyncio.sleep(self._rng.uniform(0.1, 1.5))
            if self._rng.random() < 0.5:
                self._aborted.append(range(first, log.end))
            self._openings.append((world.loop.time(), None))
            world.note("transaction", first, log.end)
            world.wake()
