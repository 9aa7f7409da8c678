"""Ranges of records in flight: neighbours without a gap, of which parts change in one pass.

Place: under share_partition.py, which decides what becomes of them.
Invariant: a pass looks at each range once, however many parts of them change, and leaves out no offset.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple


class RangeState(enum.IntEnum):
    """What became of the records of a range."""

    AVAILABLE = 0
    ACQUIRED = 1
    DONE = 2


class InFlight(NamedTuple):
    """Records in the same state. `tries`: how often they were acquired. `member_id` and `deadline` of acquired ones.
    `batch`: how many records the delivery had that they were in first, or that were loaded together; 0: there was none.
    """

    first: int
    last: int
    state: RangeState
    tries: int = 0
    member_id: str = ""
    deadline: float = 0.0
    batch: int = 0


Judge = Callable[[InFlight], InFlight | None]
"""Returns what becomes of a part of a range; None to refuse it."""


class AcquireLimits(NamedTuple):
    """`lock_seconds`: how long a record stays acquired. `attempts`: after so many it is not given out again.
    `in_flight`: the most records between start and end. `may_renew`: whether a member may keep a record for longer."""

    lock_seconds: float
    attempts: int
    in_flight: int
    may_renew: bool = True


class ChangedRanges:
    """Ranges of which some parts are judged, in ascending order: each range is looked at once."""

    def __init__(self, ranges: Sequence[InFlight]) -> None:
        self._ranges, self._judged = ranges, list[InFlight]()
        self._at = 0
        """The first range of which something is left."""
        self._rest: InFlight | None = None
        """What is left of it; None: all."""
        self.reached = 0
        """The offset after the last one that was judged."""

    def judge(self, first: int, last: int, judge: Judge) -> bool:
        """Judge the part from `first`, which is at least `reached`, to `last`, both within the ranges. Return False if
        that refuses any of it: what was made of the ranges is of no use then.
        """
        self._pass_to(bisect_right(self._ranges, first, lo=self._at, key=_first) - 1)
        self.reached = last + 1
        while True:
            each = self._rest or self._ranges[self._at]
            judged = judge(each._replace(first=max(each.first, first), last=min(each.last, last)))
            if judged is None:
                return False
            if each.first < first:
                self._judged.append(each._replace(last=first - 1))
            self._judged.append(judged)
            if each.last > last:
                self._rest = each._replace(first=last + 1)
                return True
            self._rest = None
            self._at += 1
            if each.last == last:
                return True

    def ranges(self) -> list[InFlight]:
        """Return all of them, with what is left as it was."""
        self._pass_to(len(self._ranges))
        return self._judged

    def _pass_to(self, at: int) -> None:
        """Leave what is before the range `at` as it is."""
        if self._rest is not None and at > self._at:
            self._judged.append(self._rest)
            self._rest = None
            self._at += 1
        self._judged += self._ranges[self._at : at]
        self._at = max(self._at, at)


def joined(ranges: Iterable[InFlight]) -> list[InFlight]:
    """Return them with equal neighbours as one."""
    found: list[InFlight] = []
    for each in ranges:
        if found and found[-1][2:] == each[2:]:
            found[-1] = found[-1]._replace(last=each.last)
        else:
            found.append(each)
    return found


def _first(each: InFlight) -> int:
    return each.first
