"""The partitions that a row of the feed has dropped lately: they were deleted, or their log start moved back.

Place: in the tail index (index.py).
Invariant: a log start that was asked for before its partition was dropped is not true any more. Bounded: of more than
DROPPED_MAX partitions, those that were dropped first count as if they were not; calls that are under way are short.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

DROPPED_MAX = 65_536


class LogStartMark(NamedTuple):
    """When the primary was asked for a log start: in which history, and generation of the index."""

    history: int
    generation: int


class DroppedPartitions:
    """The generation of the index in which each partition was dropped, by its key."""

    def __init__(self) -> None:
        self._dropped: OrderedDict[int, int] = OrderedDict()

    def note(self, keys: Iterable[int], generation: int) -> None:
        """Note that these were dropped."""
        for key in keys:
            self._dropped[key] = generation
            self._dropped.move_to_end(key)
        while len(self._dropped) > DROPPED_MAX:
            self._dropped.popitem(last=False)

    def was_dropped(self, key: int, since: LogStartMark) -> bool:
        """Return whether the partition was dropped since then."""
        return self._dropped.get(key, 0) > since.generation
