"""Order per key while the count of a topic's partitions changes, in memory: producers, a commit, a reading group.

Place: `python -m tests.key_order.partition_order [--seeds 200]`; tests run some seeds, and planted bugs that must be
found.
Fault model: producers know an old count until they are refused; positions that members report are late, or are
forgotten by a new coordinator; records are deleted before they are read; a controller plans each change from what is
recorded. Time does not occur: a seed chooses what happens next.
Invariant of a run without a bug: the group delivers the records of each producer's key in their order, each record once
unless it was deleted before, and everything that is left in the end.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from typing import NamedTuple

from headrace.metastore.partitions.changes import Change, Expansion, Removal, apply_change, change_count, removals
from headrace.metastore.partitions.placement import key_hash, place
from headrace.metastore.partitions.topic_partitions import TopicPartitions
from headrace.metastore.partitions.waiting import PositionReport, may_begin, may_deliver, must_report
from headrace.storage.errors import InvalidError

PRODUCERS = 3
KEYS = 24
STEPS = 1_500
COUNT_MOST = 26


class OrderError(AssertionError):
    """A promise is broken."""


class KeyedRecord(NamedTuple):
    """`number`: counts the records of one producer and key."""

    leader_epoch: int
    producer: int
    key: bytes
    number: int


class PartitionLog:
    """Offsets continue when a partition of this index is created again."""

    def __init__(self) -> None:
        self.records: list[KeyedRecord] = []
        self.start = 0

    @property
    def end(self) -> int:
        """The high watermark."""
        return len(self.records)

    def end_of(self, leader_epoch: int) -> int:
        """The offset after the last record up to this epoch, as OffsetForLeaderEpoch gives it."""
        later = (at for at, record in enumerate(self.records) if record.leader_epoch > leader_epoch)
        return next(later, self.end)


class OrderWorld:
    """One seed. `run` raises OrderError. What tests replace to plant a bug are the methods with one line of why."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.initial = self.rng.choice([1, 2, 3, 8])
        self.topic = TopicPartitions.created(self.initial, self.rng.randrange(3))
        self.logs: defaultdict[int, PartitionLog] = defaultdict(PartitionLog)
        self.known = [self.initial] * PRODUCERS
        """Counts."""
        self.sent: defaultdict[tuple[int, bytes], int] = defaultdict(int)
        self.positions: dict[int, int] = {}
        """Of the group; of partitions that a member has begun to read."""
        self.reports: dict[int, PositionReport] = {}
        """To the present coordinator."""
        self.delivered: defaultdict[tuple[int, bytes], int] = defaultdict(int)
        self.changes = 0

    def run(self) -> OrderWorld:
        """Many random events, then the group reads what is left."""
        events = [self._produce] * 12 + [self._deliver] * 10 + [self._report] * 6
        events += [self._refresh, self._change, self._delete_some, self._remove_empty, self._forget_reports]
        for _ in range(STEPS):
            self.rng.choice(events)()
        self._drain()
        return self

    # -- producers and the commit

    def _produce(self) -> None:
        producer, key = self.rng.randrange(PRODUCERS), b"key-%d" % self.rng.randrange(KEYS)
        while not self._commit(producer, key):
            self.known[producer] = self.topic.undeleted

    def _refresh(self) -> None:
        """A producer's metadata has reached its age."""
        self.known[self.rng.randrange(PRODUCERS)] = self.topic.undeleted

    def _commit(self, producer: int, key: bytes) -> bool:
        """One transaction: compare the counts, append in the partition's epoch."""
        count = self.known[producer]
        if not self.accepts(count):
            return False
        index = self.place(key_hash(key), count)
        number = self.sent[producer, key] = self.sent[producer, key] + 1
        epoch = self.topic.partitions[index].leader_epoch
        self.logs[index].records.append(KeyedRecord(epoch, producer, key, number))
        return True

    def accepts(self, count: int) -> bool:
        """INVALID_PARTITION_METADATA for another count."""
        return count == self.topic.undeleted

    def place(self, hashed: int, count: int) -> int:
        """Place a record as all clients do."""
        return place(hashed, self.initial, count)

    # -- the controller

    def _change(self) -> None:
        count = self.rng.randrange(self.initial, COUNT_MOST + 1)
        try:
            change = change_count(self.topic, count)
        except InvalidError:
            if not self.topic.marked:
                raise
            return
        if change is not None:
            self.carry_out(change)
            self.changes += 1

    def carry_out(self, change: Change) -> None:
        """One transaction."""
        self.topic = apply_change(self.topic, change)
        if isinstance(change, Expansion):
            for index in change.created:
                self.logs[index].start = self.logs[index].end
        if isinstance(change, Removal):  # and with it the group's offset
            self.positions.pop(change.partition, None)
            self.reports.pop(change.partition, None)

    def _delete_some(self) -> None:
        """Retention or DeleteRecords; often of marked partitions, so that they become empty."""
        index = self.rng.choice(self.topic.marked or range(self.topic.undeleted))
        log = self.logs[index]
        log.start = log.end if self.rng.random() < 0.7 else self.rng.randint(log.start, log.end)

    def _remove_empty(self) -> None:
        for removal in removals(self.topic, self.empty()):
            self.carry_out(removal)

    def empty(self) -> set[int]:
        """The marked partitions without records."""
        return {index for index in self.topic.marked if self.logs[index].start == self.logs[index].end}

    # -- the group: KIP-253's changes 7 and 8

    def _deliver(self) -> None:
        index = self.rng.choice(self.present())
        log = self.logs[index]
        if index not in self.positions:
            if not self.may_begin(index):
                return
            self.positions[index] = log.start
        at = self.positions[index] = max(self.positions[index], log.start)
        if at == log.end or not self.may_deliver(index, at):
            return
        record = log.records[at]
        self._judge((record.producer, record.key), record.number)
        self.positions[index] = at + 1

    def _judge(self, name: tuple[int, bytes], number: int) -> None:
        if self.delivered[name] >= number:
            raise OrderError(f"key={name[1]!r} delivered={self.delivered[name]} then={number}")
        self.delivered[name] = number

    def present(self) -> list[int]:
        """The partitions that members are assigned."""
        return [*range(self.topic.undeleted), *self.topic.marked]

    def may_begin(self, index: int) -> bool:
        """A new partition waits for its source."""
        return may_begin(self.topic.partitions[index].created_from, self)

    def may_deliver(self, index: int, at: int) -> bool:
        """An ancestor of a marked partition waits for it."""
        return may_deliver(index, at, {each: self.topic.partitions[each] for each in self.topic.marked}, self)

    def _report(self) -> None:
        """A heartbeat of the member that has this partition."""
        index = self.rng.choice(self.present())
        if index in self.positions:
            at = self.positions[index] = max(self.positions[index], self.logs[index].start)
            now = PositionReport(
                at, max((record.leader_epoch for record in self.logs[index].records[:at][-1:]), default=-1)
            )
            if self.must_report(index, now):
                self.reports[index] = now

    def must_report(self, index: int, now: PositionReport) -> bool:
        """Only what may release another member."""
        at_end = now.position == self.logs[index].end
        is_blocked = not at_end and not self.may_deliver(index, now.position)
        return must_report(now, self.reports.get(index), at_end=at_end, is_blocked=is_blocked)

    def _forget_reports(self) -> None:
        """A new coordinator knows no positions, and members report them again."""
        self.reports.clear()

    def reported(self, partition: int) -> int | None:
        """See GroupPositions."""
        report = self.reports.get(partition)
        return None if report is None else report.position

    def end_of(self, partition: int, leader_epoch: int) -> int:
        """See GroupPositions."""
        return self.logs[partition].end_of(leader_epoch)

    def high_watermark(self, partition: int) -> int:
        """See GroupPositions."""
        return self.logs[partition].end

    # -- the end

    def _drain(self) -> None:
        """OrderError unless everything that is left is delivered."""
        for _ in range(200 * COUNT_MOST):
            for _ in range(20):
                self._deliver()
                self._report()
            if not self._left():
                return
        raise OrderError(f"not delivered: partitions={self._left()}")

    def _left(self) -> list[int]:
        return [index for index in self.present() if self._position(index) < self.logs[index].end]

    def _position(self, index: int) -> int:
        return max(self.positions.get(index, -1), self.logs[index].start)


def main() -> None:
    """Run seeds until one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    args = parser.parse_args()
    changes = records = 0
    for seed in range(args.seeds):
        world = OrderWorld(seed).run()
        changes += world.changes
        records += sum(world.sent.values())
    print(f"{args.seeds} seeds: {changes} changes of the count, {records} records, order per key kept in all")


if __name__ == "__main__":
    main()
