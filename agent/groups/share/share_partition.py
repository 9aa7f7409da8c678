"""The records of one partition that one share group has in flight: a pure state machine over ranges of offsets.

Place: owned by the group's coordinator (group_partitions.py), which gives it the time and stores it.
    start   share-partition start offset: every record before it is done
    end     the first offset that was never handed out; between the two every offset is in exactly one range
    range   available, acquired by one member until a deadline, or done (accepted, rejected, a gap, attempts used up)
Invariant: a record that is done is never acquired again. An acquired one has one member. A refused acknowledgement
changes nothing. A range never becomes an object per record: equal neighbours are one range.
If the owner is killed, the next one begins with what was stored last: acquired records are available to it.
Source: KIP-932; Kafka's SharePartition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.groups.share.in_flight import (
    AckBatch,
    AcquireLimits,
    ChangedRanges,
    InFlight,
    Judge,
    Judgement,
    RangeState,
    are_suspects,
    delivery_records,
    freed,
    joined,
    runs,
)
from headrace.metastore.share_states import KeptRange

FEW_RANGES = 16
"""Ranges that a partition may always have."""
BATCH_RECORDS = 1000
"""How many records a batch may have beyond what a member asks for, so that it is delivered as a whole."""
READ_AHEAD = 8
"""How many offsets an agent reads for each record that a member asks for, at most."""


class Acquired(NamedTuple):
    """Records that a member got, both ends included, and the number of this attempt."""

    first: int
    last: int
    tries: int

    @property
    def records(self) -> int:
        """How many there are."""
        return self.last - self.first + 1


@dataclass(slots=True)
class ShareTally:
    """What happened to records of all partitions of an agent. Rises only."""

    timed_out: int = 0
    """Records of which the lock ended before they were acknowledged."""
    used_up: int = 0
    """Records that were not accepted in the last attempt that they had."""


class SharePartition:
    """One (group, partition). Times are seconds of the clock's monotonic()."""

    def __init__(self, start: int, kept: Iterable[KeptRange] = (), tally: ShareTally | None = None) -> None:
        """`kept`: as `kept` returned it, ascending, all of them from `start` on. `tally`: counts on."""
        self._tally = tally or ShareTally()
        self.start = self.end = start
        self.changes = 0
        """Rises with each change that has to be stored."""
        self.stored_changes = 0
        """How many of them are stored, as group_partitions.py knows."""
        self.is_set_by_hand = False
        """Whether the start was set before any member of the group read the topic."""
        self._log_end = 0
        """The highest end of the log that was seen; 0 if none was."""
        self._ranges: list[InFlight] = []
        self._first_available: int | None = None
        self._next_deadline: float | None = None
        for each in kept:
            if each.first > self.end:
                self._ranges.append(InFlight(self.end, each.first - 1, RangeState.AVAILABLE))
            state = RangeState.DONE if each.is_done else RangeState.AVAILABLE
            tries, batch = (0, 0) if each.is_done else (each.tries, each.last - each.first + 1)
            self._ranges.append(InFlight(each.first, each.last, state, tries, batch=batch))
            self.end = each.last + 1
        self._settle(self._ranges)

    @property
    def ranges(self) -> Sequence[InFlight]:
        """The ranges from start to end, ascending, without a gap."""
        return self._ranges

    @property
    def is_quiet(self) -> bool:
        """Whether no member has a record."""
        return self._next_deadline is None

    def next_deadline(self) -> float | None:
        """Return when the first lock expires."""
        return self._next_deadline

    def kept(self) -> list[KeptRange]:
        """Return what the next owner has to know besides the start."""
        kept: list[KeptRange] = []
        for each in self._ranges:
            is_done = each.state is RangeState.DONE
            if not is_done and not each.tries:
                continue
            row = KeptRange(each.first, each.last, is_done, 0 if is_done else each.tries)
            if kept and (kept[-1].last + 1, *kept[-1][2:]) == (row.first, *row[2:]):
                row = row._replace(first=kept.pop().first)
            kept.append(row)
        return kept

    def done_after_start(self) -> int:
        """Return how many records from the start on are done."""
        return sum(each.last - each.first + 1 for each in self._ranges if each.state is RangeState.DONE)

    # -- what members do

    def acquire(
        self,
        now: float,
        member_id: str,
        log_end: int,
        max_records: int,
        limits: AcquireLimits,
        *,
        takes_batches: bool = False,
        is_sparing: bool = False,
    ) -> list[Acquired]:
        """Give the member records before `log_end`: the first ones that are available, then new ones.

        At most `max_records`, all within READ_AHEAD times as many offsets, because an agent reads all records between
        them. Records of which attempts failed are delivered as in_flight.py says.
        `takes_batches`: up to BATCH_RECORDS more, of which the agent gives back what its last batch does not have.
        `is_sparing`: so that there are hardly more ranges than FEW_RANGES.
        """
        self.expire(now, limits.attempts)
        self._log_end = max(self._log_end, log_end)
        if is_sparing and len(self._ranges) >= FEW_RANGES:
            chosen = self._one_range(log_end, max_records, limits)
        elif is_sparing:
            chosen = self._first_ones(log_end, min(max_records, FEW_RANGES), limits)
        else:
            more = BATCH_RECORDS if takes_batches and max_records > 0 else 0
            chosen = self._first_ones(log_end, max_records, limits, more)
        if not chosen:
            return []
        deadline = now + limits.lock_seconds
        changed = ChangedRanges(self._ranges)
        for each in chosen:
            if each.first < self.end:
                changed.judge(each.first, each.last, partial(_acquired, member_id, deadline, each.records))
        ranges = changed.ranges()
        if chosen[-1].first >= self.end:
            new = InFlight(*chosen[-1][:2], RangeState.AVAILABLE)
            ranges.append(_acquired(member_id, deadline, chosen[-1].records, new))
        self._settle(ranges)
        return _joined(chosen)

    def acknowledge(
        self,
        now: float,
        member_id: str,
        batches: Iterable[AckBatch],
        limits: AcquireLimits,
        *,
        may_grow: bool = True,
    ) -> ErrorCode:
        """Apply all batches, or none: INVALID_RECORD_STATE for records that the member has not acquired (any more),
        INVALID_REQUEST for what the log does not have, and for batches that do not ascend. Records before the start
        are done: nothing to do. One pass over the ranges. If it may not grow, KAFKA_STORAGE_ERROR, which clients may
        repeat, for what makes more ranges, and more than FEW_RANGES.
        """
        self.expire(now, limits.attempts)
        judgement, changed = Judgement(now, member_id, limits), ChangedRanges(self._ranges)
        for batch in batches:
            if batch.last < self.start:
                continue
            if max(batch.first, self.start) < changed.reached:
                return ErrorCode.invalid_request
            if batch.last >= self.end:
                return self._beyond_the_end(batch.last)
            for first, last, kind in runs(batch, self.start):
                if not changed.judge(first, last, judgement.of(kind)):
                    return ErrorCode.invalid_record_state
        ranges = changed.ranges()
        if not may_grow and len(joined(ranges)) > max(len(self._ranges), FEW_RANGES):
            return ErrorCode.kafka_storage_error
        if ranges != self._ranges:
            self.changes += 1
            self._settle(ranges)
            self._tally.used_up += judgement.used_up
        return ErrorCode.none

    def give_back(self, member_id: str, ranges: Iterable[tuple[int, int]], *, is_done: bool = False) -> None:
        """Take back what an agent could not send to the member: it was no attempt. `is_done`: no member may have it, as
        its transaction was aborted. What the member has not acquired any more stays as it is.
        """

        def judge(each: InFlight) -> InFlight | None:
            if each.state is not RangeState.ACQUIRED or each.member_id != member_id:
                return each
            if is_done:
                return InFlight(each.first, each.last, RangeState.DONE)
            tries = max(each.tries - 1, 0)
            return InFlight(each.first, each.last, RangeState.AVAILABLE, tries, batch=each.batch if tries else 0)

        self._judge(ranges, judge, has_changed=is_done)
        if not is_done:
            self._settle([_smaller(member_id, each) for each in self._ranges])

    def are_holes(self, member_id: str, ranges: Iterable[tuple[int, int]]) -> None:
        """The log has no records at these offsets: they are done, unless another member has them; also those that were
        never handed out, as far as the log is known.
        """

        def judge(each: InFlight) -> InFlight | None:
            is_others = each.state is RangeState.ACQUIRED and each.member_id != member_id
            return each if is_others else InFlight(each.first, each.last, RangeState.DONE)

        known = sorted((first, min(last, self._log_end - 1)) for first, last in ranges)
        self._judge(known, judge, has_changed=True)
        for first, last in known:
            if first <= self.end <= last:
                self._settle([*self._ranges, InFlight(self.end, last, RangeState.DONE)])

    def release(self, member_id: str, attempts: int) -> bool:
        """The member is gone: others may have what it had acquired. Return whether it had anything."""
        return self._free(lambda each: each.member_id == member_id, attempts)

    def expire(self, now: float, attempts: int) -> bool:
        """Release what was acquired for too long. Return whether anything was."""
        if self._next_deadline is None or self._next_deadline > now:
            return False
        late = [each for each in self._ranges if each.state is RangeState.ACQUIRED and each.deadline <= now]
        self._tally.timed_out += sum(each.last - each.first + 1 for each in late)
        return self._free(lambda each: each.deadline <= now, attempts)

    def log_start_moved(self, log_start: int) -> None:
        """Records before `log_start` do not exist any more: they are done, also those that a member has."""
        if log_start <= self.start:
            return
        self.changes += 1
        ranges = [each._replace(first=max(each.first, log_start)) for each in self._ranges if each.last >= log_start]
        self.start, self.end = log_start, max(self.end, log_start)
        self._settle(ranges)

    # -- insides

    def _beyond_the_end(self, last: int) -> ErrorCode:
        """Return what an acknowledgement gets for records that this owner never handed out. An earlier owner may have:
        acquisitions are not stored.
        """
        is_in_log = last < self._log_end or not self._log_end
        return ErrorCode.invalid_record_state if is_in_log else ErrorCode.invalid_request

    def _first_ones(self, log_end: int, max_records: int, limits: AcquireLimits, more: int = 0) -> list[Acquired]:
        """Return the first records that a member may get: suspects, or others and new ones, and `more` of these."""
        first = self._first_available
        new_end = min(log_end, self.start + limits.in_flight)
        span_end = (self.end if first is None else first) + READ_AHEAD * max_records + more
        chosen: list[Acquired] = []
        left = max_records + more
        for each in self._available(min(log_end, span_end)):
            if left <= 0:
                break
            if are_suspects(each.tries, limits.attempts):
                return chosen or [_part(each, max_records, limits)]
            last = min(each.last, each.first + left - 1)
            chosen.append(Acquired(each.first, last, each.tries + 1))
            left -= last - each.first + 1
        new_end = min(new_end, span_end, self.end + left)
        if self.end < new_end:
            chosen.append(Acquired(self.end, new_end - 1, 1))
        return chosen

    def _one_range(self, log_end: int, max_records: int, limits: AcquireLimits) -> list[Acquired]:
        """Return the first range that is available and small enough as a whole. Only if there is none, and no member
        has any, return a part of one.
        """
        first = None
        for each in self._available(log_end):
            most = _part(each, max_records, limits)
            if most.last == each.last and max_records > 0:
                return [most]
            first = first or most
        return [first] if first is not None and self.is_quiet and max_records > 0 else []

    def _available(self, end: int) -> Iterator[InFlight]:
        """Yield the ranges that no member has, and that are not done, up to `end`."""
        for each in self._ranges:
            if each.first >= end:
                return
            if each.state is RangeState.AVAILABLE:
                yield each._replace(last=min(each.last, end - 1))

    def _judge(self, ranges: Iterable[tuple[int, int]], judge: Judge, *, has_changed: bool) -> None:
        """Judge the parts of these ranges that are in flight. `has_changed`: it has to be stored."""
        changed = ChangedRanges(self._ranges)
        for first, last in sorted(ranges):
            first, last = max(first, self.start, changed.reached), min(last, self.end - 1)
            if first <= last:
                changed.judge(first, last, judge)
        if changed.reached:
            self.changes += has_changed
            self._settle(changed.ranges())

    def _free(self, is_wanted: Callable[[InFlight], bool], attempts: int) -> bool:
        """Attempts are counted when they end."""
        if not any(each.state is RangeState.ACQUIRED and is_wanted(each) for each in self._ranges):
            return False
        self.changes += 1
        ranges: list[InFlight] = []
        for each in self._ranges:
            if each.state is not RangeState.ACQUIRED or not is_wanted(each):
                ranges.append(each)
                continue
            ranges.append(freed(each, attempts))
            self._tally.used_up += (each.last - each.first + 1) * (each.tries >= attempts)
        self._settle(ranges)
        return True

    def _settle(self, ranges: Iterable[InFlight]) -> None:
        """Join equal neighbours, and move the start past those that are done."""
        settled = joined(ranges)
        end = settled[-1].last + 1 if settled else self.end
        if settled and settled[0].state is RangeState.DONE:
            self.start = settled.pop(0).last + 1
        self._ranges = settled
        self.end = max(self.start, end)
        self._first_available = next((each.first for each in settled if each.state is RangeState.AVAILABLE), None)
        deadlines = (each.deadline for each in settled if each.state is RangeState.ACQUIRED)
        self._next_deadline = min(deadlines, default=None)


def _acquired(member_id: str, deadline: float, records: int, each: InFlight) -> InFlight:
    return InFlight(
        each.first, each.last, RangeState.ACQUIRED, each.tries + 1, member_id, deadline, each.batch or records
    )


def _smaller(member_id: str, each: InFlight) -> InFlight:
    """Return records that the member has in their first attempt, of which some neighbours were given back."""
    if each.state is RangeState.ACQUIRED and each.member_id == member_id and each.tries == 1:
        return each._replace(batch=min(each.batch, each.last - each.first + 1))
    return each


def _part(each: InFlight, max_records: int, limits: AcquireLimits) -> Acquired:
    """Return the first records of a range that one delivery may have."""
    records = min(each.last - each.first + 1, max_records)
    if are_suspects(each.tries, limits.attempts):
        records = min(records, delivery_records(each.tries, each.batch, limits.attempts))
    return Acquired(each.first, each.first + records - 1, each.tries + 1)


def end_of(acquired: Iterable[Acquired], records: int) -> int:
    """Return the offset after so many acquired records, or 0 if there are not more."""
    for each in acquired:
        if records < each.records:
            return each.first + records
        records -= each.records
    return 0


def _joined(acquired: list[Acquired]) -> list[Acquired]:
    """Neighbours with the same number of attempts are one range."""
    joined: list[Acquired] = []
    for each in acquired:
        if joined and joined[-1].last + 1 == each.first and joined[-1].tries == each.tries:
            joined[-1] = joined[-1]._replace(last=each.last)
        else:
            joined.append(each)
    return joined
