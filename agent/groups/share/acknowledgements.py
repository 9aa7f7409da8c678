"""What acknowledgements of a member make of the records that it has acquired.

Place: pure policy under share_partition.py, which applies it to its ranges.
Invariant: only an acquired range of the member itself changes; for any other one there is no judgement.
Source: KIP-932, KIP-1222 (renewal).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from headrace.agent.groups.share.in_flight import AcquireLimits, InFlight, Judge, RangeState


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
