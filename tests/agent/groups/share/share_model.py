"""The reference of a share-partition: one object per record, and no range; and random histories of both.

Fault model: the owner is replaced at any time by one that knows only what was stored at some earlier change that was
answered; locks expire; the log start moves; members acknowledge what they do not have.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from kio.schema.errors import ErrorCode

from headrace.agent.groups.share.in_flight import AckBatch, AckType, AcquireLimits, RangeState
from headrace.agent.groups.share.share_partition import SharePartition
from headrace.metastore.share_states import KeptRange

MEMBERS = ("a", "b", "c")
STEPS = 120


class Difference(AssertionError):
    """A share-partition does something else than the model, or breaks a promise."""


@dataclass
class Record:
    """One record in flight."""

    state: RangeState = RangeState.AVAILABLE
    count: int = 0
    member: str = ""
    deadline: float = 0.0
    batch: int = 0
    """How many records were delivered with it first."""


class ModelPartition:
    """All records from `start` to `end`, by offset."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.log_end = 0
        self.records: dict[int, Record] = {}

    def acquire(self, now: float, member: str, log_end: int, most: int, limits: AcquireLimits) -> dict[int, int]:
        self.expire(now, limits.attempts)
        self.log_end = max(self.log_end, log_end)
        available = [
            offset
            for offset in sorted(self.records)
            if self.records[offset].state is RangeState.AVAILABLE and offset < log_end
        ]
        first = min((o for o in self.records if self.records[o].state is RangeState.AVAILABLE), default=self.end)
        span_end = first + 8 * most
        new_from = self.end
        chosen = self._some([offset for offset in available if offset < span_end], most, limits.attempts)
        if not any(
            self._is_suspect(self.records[offset].count, limits.attempts) for offset in available[: len(chosen) + 1]
        ):
            new_end = min(log_end, self.start + limits.in_flight, span_end, self.end + most - len(chosen))
            for offset in range(self.end, new_end):
                self.records[offset] = Record()
                self.end = offset + 1
                chosen.append(offset)
        for part in self._parts(chosen, new_from):
            for offset in part:
                old = self.records[offset]
                self.records[offset] = Record(
                    RangeState.ACQUIRED, old.count + 1, member, now + limits.lock_seconds, old.batch or len(part)
                )
        return {offset: self.records[offset].count for offset in chosen}

    def _some(self, available: list[int], most: int, attempts: int) -> list[int]:
        """Return the first ones up to the first suspect; suspects apart, by Kafka's rule."""
        chosen: list[int] = []
        for at, offset in enumerate(available):
            count = self.records[offset].count
            if not self._is_suspect(count, attempts):
                if len(chosen) == most:
                    break
                chosen.append(offset)
                continue
            if chosen:
                break
            alike = next(part for part in self._parts(available[at:], self.end))[:most]
            halvings = count - max(2, math.ceil(attempts / 2)) + 1
            return alike[:1] if count == attempts - 1 else alike[: max(self.records[offset].batch // 2**halvings, 1)]
        return chosen

    def _parts(self, offsets: list[int], new_from: int) -> list[list[int]]:
        """Divide ascending offsets into neighbours of one delivery with the same count; new ones are apart."""
        parts: list[list[int]] = []
        for offset in offsets:
            record, before = self.records[offset], parts[-1][-1] if parts else -2
            is_same = before + 1 == offset != new_from and before in self.records
            if is_same and (record.count, record.batch) == (self.records[before].count, self.records[before].batch):
                parts[-1].append(offset)
            else:
                parts.append([offset])
        return parts

    def _is_suspect(self, count: int, attempts: int) -> bool:
        return attempts > 2 and count >= max(2, math.ceil(attempts / 2))

    def acknowledge(self, now: float, member: str, batches: list[AckBatch], limits: AcquireLimits) -> ErrorCode:
        self.expire(now, limits.attempts)
        changes: dict[int, Record] = {}
        for batch in batches:
            for offset in range(batch.first, batch.last + 1):
                kind = batch.types[0] if len(batch.types) == 1 else batch.types[offset - batch.first]
                if batch.last < self.start or offset < self.start:
                    continue
                if batch.last >= self.end:
                    is_past_log = 0 < self.log_end <= batch.last
                    return ErrorCode.invalid_request if is_past_log else ErrorCode.invalid_record_state
                record = self.records[offset]
                if record.state is not RangeState.ACQUIRED or record.member != member:
                    return ErrorCode.invalid_record_state
                if kind == AckType.RENEW:
                    record = Record(record.state, record.count, member, now + limits.lock_seconds, record.batch)
                elif kind == AckType.RELEASE:
                    record = self._freed(record, limits.attempts)
                else:
                    record = Record(RangeState.DONE)
                changes[offset] = record
        self.records.update(changes)
        self._advance()
        return ErrorCode.none

    def give_back(self, member: str, first: int, last: int, is_done: bool) -> None:
        for offset in range(first, last + 1):
            record = self.records.get(offset)
            if record is not None and record.state is RangeState.ACQUIRED and record.member == member:
                left = Record(count=record.count - 1, batch=record.batch if record.count > 1 else 0)
                self.records[offset] = Record(RangeState.DONE) if is_done else left
        if not is_done:
            self._shrink(member)
        self._advance()

    def _shrink(self, member: str) -> None:
        """Take what a member still has of its first delivery for the whole of it."""
        runs: list[list[Record]] = []
        last: tuple[int, Record] | None = None
        for offset in sorted(self.records):
            record = self.records[offset]
            if (record.state, record.member, record.count) == (RangeState.ACQUIRED, member, 1):
                if last is not None and last == (offset - 1, record):
                    runs[-1].append(record)
                else:
                    runs.append([record])
                last = offset, replace(record)
        for run in runs:
            for record in run:
                record.batch = min(record.batch, len(run))

    def release(self, member: str, attempts: int) -> None:
        self._free(lambda record: record.member == member, attempts)

    def expire(self, now: float, attempts: int) -> None:
        self._free(lambda record: record.deadline <= now, attempts)

    def log_start_moved(self, log_start: int) -> None:
        self.records = {offset: record for offset, record in self.records.items() if offset >= log_start}
        self.start, self.end = max(self.start, log_start), max(self.end, log_start)
        self._advance()

    def restored(self) -> ModelPartition:
        """Return what the next owner knows: records that were acquired are available."""
        other = ModelPartition(self.start)
        known = [offset for offset, r in self.records.items() if r.state is RangeState.DONE or r.count]
        for offset in range(self.start, max(known, default=self.start - 1) + 1):
            record = self.records[offset]
            is_done = record.state is RangeState.DONE
            other.records[offset] = Record(RangeState.DONE) if is_done else Record(count=record.count)
            other.end = offset + 1
        for part in other._parts([each for each in other.records if other.records[each].count], other.end):
            for offset in part:
                other.records[offset].batch = len(part)
        return other

    def _free(self, is_wanted: Callable[[Record], bool], attempts: int) -> None:
        for offset, record in self.records.items():
            if record.state is RangeState.ACQUIRED and is_wanted(record):
                self.records[offset] = self._freed(record, attempts)
        self._advance()

    def _freed(self, record: Record, attempts: int) -> Record:
        return Record(RangeState.DONE) if record.count >= attempts else Record(count=record.count, batch=record.batch)

    def _advance(self) -> None:
        while self.start in self.records and self.records[self.start].state is RangeState.DONE:
            del self.records[self.start]
            self.start += 1


class History:
    """One seed: the same steps on both."""

    def __init__(self, seed: int, partition: type[SharePartition] = SharePartition) -> None:
        self._rng = random.Random(seed)
        self._type = partition
        start = self._rng.choice((0, 7))
        self.real, self.model = partition(start), ModelPartition(start)
        self._limits = AcquireLimits(2.0, self._rng.choice((1, 2, 5, 10)), self._rng.choice((6, 20, 200)))
        self._log_end, self._now = start, 0.0
        self._done: set[int] = set()
        """Records of which a member heard that its acceptance was applied."""
        self._changes = 0
        self._kept: list[KeptRange] = []
        self._restarts = 0

    def run(self) -> None:
        """Raises Difference."""
        steps = [
            self._produce,
            self._produce,
            *[self._acquire] * 4,
            *[self._acknowledge] * 5,
            self._wait,
            self._release,
        ]
        rare = [self._give_back, self._move_log_start, self._replace_owner]
        for _ in range(STEPS):
            self._rng.choice(steps if self._rng.random() < 0.85 else rare)()
            self._compare()
        self._finish()

    def _produce(self) -> None:
        self._log_end += self._rng.randint(0, 8)

    def _acquire(self) -> None:
        member, most = self._rng.choice(MEMBERS), self._rng.choice((1, 3, 10, 50))
        end = self._log_end - (self._rng.randint(0, 10) if self._rng.random() < 0.1 else 0)
        """The last stable offset, after the group began to read committed records only."""
        args = (self._now, member, max(end, 0), most, self._limits)
        got = {o: each.tries for each in self.real.acquire(*args) for o in range(each.first, each.last + 1)}
        if again := self._done & got.keys():
            raise Difference(f"delivered after its acceptance was answered: {sorted(again)}")
        if any(count > self._limits.attempts + self._restarts for count in got.values()):
            raise Difference(f"too many attempts: {got}")
        self._same("acquired", got, self.model.acquire(*args))

    def _acknowledge(self) -> None:
        member = self._rng.choice(MEMBERS)
        batches, at = list[AckBatch](), self.real.start - self._rng.choice((0, 0, 2))
        mine = [each for each in self.real.ranges if each.member_id == member]
        if mine and self._rng.random() < 0.8:
            at = self._rng.choice(mine).first
        for _ in range(self._rng.choice((1, 1, 2))):
            first = max(at, 0)
            last = first + self._rng.randint(0, 6)
            within = [each.last for each in mine if each.first <= first <= each.last]
            if within and self._rng.random() < 0.8:
                last = min(last, within[0])
            kinds = (0, 1, 1, 1, 2, 3, 4)
            count = self._rng.choice((1, last - first + 1))
            batches.append(AckBatch(first, last, [self._rng.choice(kinds) for _ in range(count)]))
            at = last + 1 + self._rng.randint(0, 2)
        before = (self.real.start, list(self.real.ranges))
        code = self.real.acknowledge(self._now, member, batches, self._limits)
        self._same("code", code, self.model.acknowledge(self._now, member, batches, self._limits))
        if code is not ErrorCode.none and self._now < (self.real.next_deadline() or 0) - 2.5:
            self._same("a refused acknowledgement changed", (self.real.start, list(self.real.ranges)), before)
        if code is ErrorCode.none:
            for batch in batches:
                for offset in range(batch.first, batch.last + 1):
                    kind = batch.types[0] if len(batch.types) == 1 else batch.types[offset - batch.first]
                    if kind in (AckType.GAP, AckType.ACCEPT, AckType.REJECT):
                        self._done.add(offset)

    def _wait(self) -> None:
        self._now += self._rng.choice((0.3, 1.0, 2.5))
        if self._rng.random() < 0.5:
            self.real.expire(self._now, self._limits.attempts)
            self.model.expire(self._now, self._limits.attempts)

    def _release(self) -> None:
        member = self._rng.choice(MEMBERS)
        self.real.release(member, self._limits.attempts)
        self.model.release(member, self._limits.attempts)

    def _give_back(self) -> None:
        member, first = self._rng.choice(MEMBERS), self.real.start + self._rng.randint(-1, 5)
        last, is_done = first + self._rng.randint(0, 4), self._rng.random() < 0.3
        self.real.give_back(member, [(first, last)], is_done=is_done)
        self.model.give_back(member, first, last, is_done)

    def _move_log_start(self) -> None:
        at = min(self.real.start + self._rng.randint(-2, 6), self._log_end)
        self.real.log_start_moved(at)
        self.model.log_start_moved(at)

    def _replace_owner(self) -> None:
        self._restarts += 1
        self.real = self._type(self.real.start, self.real.kept())
        self.model = self.model.restored()
        self._changes = self.real.changes

    def _compare(self) -> None:
        real = {
            offset: Record(each.state, each.tries, each.member_id, each.deadline, each.batch)
            for each in self.real.ranges
            for offset in range(each.first, each.last + 1)
        }
        done = {offset for offset, record in real.items() if record.state is RangeState.DONE}
        for offset in done:
            real[offset] = self.model.records[offset] = Record(RangeState.DONE)
        self._same("start and end", (self.real.start, self.real.end), (self.model.start, self.model.end))
        self._same("records", real, self.model.records)
        offsets = [o for each in self.real.ranges for o in (each.first, each.last)]
        if offsets != sorted(offsets) or any(a[2:] == b[2:] for a, b in itertools.pairwise(self.real.ranges)):
            raise Difference(f"ranges overlap, or equal neighbours are not joined: {self.real.ranges}")
        self._check_what_is_kept()

    def _check_what_is_kept(self) -> None:
        """What the next owner would forget counts as a change that has to be stored."""
        self._same("restored", self._type(self.real.start, self.real.kept()).kept(), self.real.kept())
        finished = [each for each in self.real.kept() if each.is_done]
        if self.real.changes == self._changes and finished != self._kept:
            raise Difference("a change is not marked as one that has to be stored")
        self._changes, self._kept = self.real.changes, finished

    def _finish(self) -> None:
        """No record is stuck: with a member that accepts all it gets, all become done."""
        for _ in range(2000):
            self._now += 3.0
            got = self.real.acquire(self._now, "last", self._log_end, 50, self._limits)
            if not got:
                break
            self.real.acknowledge(self._now, "last", [AckBatch(e.first, e.last, [1]) for e in got], self._limits)
        if self.real.start != max(self._log_end, self.real.start) or self.real.start < self._log_end:
            raise Difference(f"records are stuck: start={self.real.start} log_end={self._log_end}")

    def _same(self, what: str, real: object, model: object) -> None:
        if real != model:
            raise Difference(f"{what}: {real} instead of {model}")
