"""Ranges of records in flight: what acknowledgements make of them, how many one delivery may have. Pure.

Place: policy under share_partition.py, which applies it to its ranges: neighbours without a gap, of which parts
change in one pass.
Invariant: a pass looks at each range once, however many parts of them change, and leaves out no offset. Only an
acquired range of the member itself changes by its acknowledgements; for any other one there is no judgement. A
delivery has fewer records, the more attempts of them have failed (suspects): a record in its last attempt is
delivered alone, so that a record that makes its member fail uses up the attempts of no other one. Suspects are never
in one delivery with other records. The rule looks at stored attempts only, so it holds under the next owner, and
however an attempt ended.
Source: KIP-932, KIP-1222 (renewal); Kafka 4.3's SharePartition, which shrinks the deliveries of a batch in the same
way.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
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


class AckType(enum.IntEnum):
    """What a member says about a record."""

    GAP = 0
    """There is no record: a marker, or a record that compaction removed."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """The member needs more time."""


class AckBatch(NamedTuple):
    """One type for all records of the range, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class Judgement:
    """What acknowledgements of a member make of ranges."""

    def __init__(self, now: float, member_id: str, limits: AcquireLimits) -> None:
        self._now, self._member_id, self._limits = now, member_id, limits
        self.used_up = 0
        """Records that were released in the last attempt that they may have."""

    def of(self, kind: int) -> Judge:
        """Return what makes an acquired range of the member what the type says; None for any other range."""
        return partial(self._judge, kind)

    def _judge(self, kind: int, each: InFlight) -> InFlight | None:
        if each.state is not RangeState.ACQUIRED or each.member_id != self._member_id:
            return None
        if kind == AckType.RENEW:
            deadline = self._now + self._limits.lock_seconds
            return each._replace(deadline=deadline) if self._limits.may_renew else None
        if kind == AckType.RELEASE:
            left = freed(each, self._limits.attempts)
            self.used_up += (each.last - each.first + 1) * (left.state is RangeState.DONE)
            return left
        return InFlight(each.first, each.last, RangeState.DONE)


def runs(batch: AckBatch, start: int) -> Iterable[tuple[int, int, int]]:
    """Yield (first, last, type) of the batch's records from `start` on, those of one type together."""
    first = max(batch.first, start)
    if len(batch.types) == 1:
        yield first, batch.last, batch.types[0]
        return
    types = batch.types[first - batch.first :]
    begin = 0
    for at in range(1, len(types) + 1):
        if at == len(types) or types[at] != types[begin]:
            yield first + begin, first + at - 1, types[begin]
            begin = at


def freed(each: InFlight, attempts: int) -> InFlight:
    """Return records after an attempt that did not end with their acknowledgement."""
    if each.tries >= attempts:
        return InFlight(each.first, each.last, RangeState.DONE)
    return InFlight(each.first, each.last, RangeState.AVAILABLE, each.tries, batch=each.batch)


SUSPECT_ATTEMPTS_MIN = 2
"""After fewer failed attempts, records are never suspects."""


def are_suspects(tries: int, attempts: int) -> bool:
    """Return whether records that failed `tries` times, of at most `attempts`, are delivered apart from others."""
    return attempts > SUSPECT_ATTEMPTS_MIN and tries >= _suspect_from(attempts)


def delivery_records(tries: int, batch: int, attempts: int) -> int:
    """Return how many suspects one delivery may have, at least 1: half of the `batch` records that they were delivered
    with first, a quarter in the next attempt, ..., one in the last.
    """
    if tries >= attempts - 1:
        return 1
    return max(batch >> (tries - _suspect_from(attempts) + 1), 1)


def _suspect_from(attempts: int) -> int:
    return max(SUSPECT_ATTEMPTS_MIN, (attempts + 1) // 2)
