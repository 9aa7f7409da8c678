"""A topic halves under unmodified producers and reading groups, in memory: order per key, and records that fail.

Place: `python -m tests.key_order.halving_order [--seeds 40]` compares the rule of metastore/partitions/merging.py with
one in which the new count is shown at once. Tests run some seeds, and planted bugs.
Fault model: as in doubling_order.py. Half of the producers never take a lower count (librdkafka); the others take it,
and what they have queued for a partition that is listed no more fails when their delivery timeout is over, unless the
partition is listed again before (Kafka's Java client). Groups read each partition at another pace, some too slowly for
a pause. With `doubles_again` the topic doubles again, and all producers know it at once.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from headrace.metastore.partitions.merging import MergePhase, MergeTimes, MergeVerdict, PartitionMerge
from tests.key_order.unmodified_clients import (
    COUNT,
    KEYS,
    Events,
    QueuedBatch,
    SentRecord,
    UnmodifiedProducer,
    behind_newer,
    drawn_backoff,
    next_backoff,
)

BEGINS_MS, ENDS_MS = 2_000, 40_000
EVERY_MS = (30, 30, 30, 30, 900, 2_500)
"""Each producer sends a record so often, on average."""
REFRESH_MS = 4_000
LINGER_MS = 25
"""The longest time that a batch waits for more records."""
DELIVERY_MS = 15_000
COMMIT_MS = 1_000
"""Groups commit so often."""
GROUPS = 3
STALL_MS = 9_000
"""A group that stops reading does so for as long."""


TIMES = MergeTimes(lag_most=30, pause_most_ms=4_000, pause_again_ms=500)


def merge() -> PartitionMerge:
    """Merge children with times that fit those above."""
    return PartitionMerge(TIMES)


class GroupRead(NamedTuple):
    """A record that a group read."""

    group: int
    record: SentRecord


class ShrinkingProducer(UnmodifiedProducer):
    """Knows 2 * COUNT partitions at first."""

    def __init__(self, number: int) -> None:
        super().__init__(number, 2 * COUNT)
        self.takes_lower_counts = number % 2 == 0
        self.queued_ms: dict[int, int] = {}
        """Partition -> when the oldest record of its queue was queued: from then on its delivery timeout counts."""


class HalvingWorld(Events):
    """One seed. `run`, then ask for `inversions`, `failed` and `refused`."""

    doubles_again = False
    """Double again as soon as it may."""

    def __init__(self, seed: int, make_merge: Callable[[], PartitionMerge] = merge) -> None:
        super().__init__(seed)
        self.merges = {parent: make_merge() for parent in range(COUNT)}
        self.begun = self.doubled = False
        self.shown_ms: int | None = None
        self.logs: defaultdict[int, list[SentRecord]] = defaultdict(list)
        self.stored: set[QueuedBatch] = set()
        self.refused: list[SentRecord] = []
        self.failed: list[SentRecord] = []
        self.sent: list[SentRecord] = []
        self.deliveries: list[GroupRead] = []
        self.read: defaultdict[tuple[int, int], int] = defaultdict(int)
        """(group, partition) -> position."""
        self.committed: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.undone = 0
        self.late: list[SentRecord] = []
        """Appended to a child after the topic doubled again, behind a newer record of its producer and key."""
        self.producers = [ShrinkingProducer(number) for number in range(len(EVERY_MS))]

    def run(self) -> HalvingWorld:
        """Run until every batch was stored, refused or given up, and every group has read all."""
        for producer in self.producers:
            self._every(EVERY_MS[producer.number], lambda producer=producer: self._produce(producer))  # type: ignore[misc]
            self._every(REFRESH_MS, lambda producer=producer: self._refresh(producer))  # type: ignore[misc]
        for group in range(GROUPS):
            self._every(COMMIT_MS, lambda group=group: self._commit_offsets(group))  # type: ignore[misc]
            for partition in range(2 * COUNT):
                self.after(self.rng.randrange(50), lambda g=group, p=partition: self._poll(g, p))  # type: ignore[misc]
        self.after(BEGINS_MS, self._control)
        self.run_all()
        return self

    def _every(self, mean_ms: int, event: Callable[[], None]) -> None:
        def again() -> None:
            event()
            if self.now < ENDS_MS:
                self.after(1 + self.rng.randrange(2 * mean_ms), again)

        self.after(self.rng.randrange(mean_ms), again)

    @property
    def inversions(self) -> list[GroupRead]:
        """Records that a group reads after a newer one of their producer and key."""
        found = []
        for group in range(GROUPS):
            read = [delivery.record for delivery in self.deliveries if delivery.group == group]
            found += [GroupRead(group, record) for record in behind_newer(read)]
        return found

    # -- the server

    def _control(self) -> None:
        self.begun = True
        for parent, merge in self.merges.items():
            child, before = parent + COUNT, merge.phase
            committed = [self.committed[group, child] for group in range(GROUPS)]
            merge.advance(len(self.logs[child]), committed, self.now)
            self.undone += (before, merge.phase) == (MergePhase.PAUSED, MergePhase.DRAINING)
        if self.shown_ms is None and all(merge.may_show(self.now) for merge in self.merges.values()):
            self.shown_ms = self.now
        if self.shown_ms is not None:
            for merge in self.merges.values():
                merge.settle(self.shown_ms, self.now)
        if self.doubles_again and all(merge.phase is MergePhase.SETTLED for merge in self.merges.values()):
            self._double()
        elif self.now < ENDS_MS + STALL_MS:
            self.after(100, self._control)

    def _double(self) -> None:
        """All producers know it at once; splitting.py has the rules for what is on its way to parents."""
        self.doubled = True
        for producer in self.producers:
            producer.count = 2 * COUNT

    def shown_count(self) -> int:
        """Return the shown count by any agent."""
        return 2 * COUNT if self.shown_ms is None or self.doubled else COUNT

    def commit(self, producer: int, batch: QueuedBatch) -> MergeVerdict:
        """A stored batch is a duplicate."""
        if batch in self.stored:
            return MergeVerdict.IN_PARENT
        verdict = self.judge(producer, batch)
        if verdict in (MergeVerdict.IN_CHILD, MergeVerdict.IN_PARENT):
            self.stored.add(batch)
            in_parent = verdict is MergeVerdict.IN_PARENT
            log = batch.partition % COUNT if in_parent else batch.partition
            self.logs[log] += batch.records
            if self.doubled and log >= COUNT:
                self.late += self._behind_newer(batch)
        return verdict

    def _behind_newer(self, batch: QueuedBatch) -> list[SentRecord]:
        newest: dict[tuple[int, int], int] = {}
        for record in self.logs[batch.partition - COUNT]:
            newest[record.producer, record.key] = record.number
        return [record for record in batch.records if record.number < newest.get((record.producer, record.key), -1)]

    def judge(self, producer: int, batch: QueuedBatch) -> MergeVerdict:
        """Judge by the pair's merge, while there is one."""
        is_child = batch.partition >= COUNT
        if not self.begun or self.doubled:
            return MergeVerdict.IN_CHILD if is_child else MergeVerdict.IN_PARENT
        merge = self.merges[batch.partition % COUNT]
        if is_child:
            return merge.to_child(producer, self.now)
        has_moved = any(record.key % (2 * COUNT) != batch.partition for record in batch.records)
        return merge.to_parent(producer, has_moved, self.now)

    # -- a group

    def _poll(self, group: int, partition: int) -> None:
        log, position = self.logs[partition], self.read[group, partition]
        end = min(len(log), position + self.rng.randrange(1, 40))
        self.deliveries += [GroupRead(group, record) for record in log[position:end]]
        self.read[group, partition] = end
        if self.now < ENDS_MS + 3 * STALL_MS or end < len(log):
            stalls = self.rng.random() < 0.002
            self.after(STALL_MS if stalls else self.rng.randrange(10, 200), lambda: self._poll(group, partition))

    def _commit_offsets(self, group: int) -> None:
        for partition in range(2 * COUNT):
            self.committed[group, partition] = self.read[group, partition]

    # -- a client

    def _produce(self, producer: ShrinkingProducer) -> None:
        partition, record = producer.produce(self.rng.randrange(KEYS))
        self.sent.append(record)
        producer.queued_ms.setdefault(partition, self.now)
        self.after(self.rng.randrange(LINGER_MS), lambda: self._send_next(producer, partition))

    def _refresh(self, producer: ShrinkingProducer) -> None:
        def answered() -> None:
            shown = self.shown_count()
            if shown > producer.count or producer.takes_lower_counts:
                producer.count = shown

        self.after(self.rng.randrange(5, 60), answered)

    def _send_next(self, producer: ShrinkingProducer, partition: int) -> None:
        batch = producer.next_batch(partition)
        if batch is not None:
            self._send(producer, batch, producer.queued_ms.pop(partition) + DELIVERY_MS)

    def _send(self, producer: ShrinkingProducer, batch: QueuedBatch, fails_ms: int, backoff_ms: int = 100) -> None:
        if self.now >= fails_ms:
            self.failed += batch.records
            self._answered(producer, batch)
            return
        if batch.partition >= producer.count:  # not listed: the client waits for it
            self.after(50, lambda: self._send(producer, batch, fails_ms, backoff_ms))
            return
        fate = self.rng.random()

        def arrive() -> None:
            verdict = self.commit(producer.number, batch)
            if fate > 0.99:  # the answer is lost, with the connection
                self.after(self.rng.randrange(1_000), lambda: self._send(producer, batch, fails_ms))
                return
            self.after(self.rng.randrange(1, 30), lambda: answered(verdict))

        def answered(verdict: MergeVerdict) -> None:
            if verdict is MergeVerdict.SEND_AGAIN:
                self._refresh(producer)
                pause = drawn_backoff(self.rng, backoff_ms)
                self.after(pause, lambda: self._send(producer, batch, fails_ms, next_backoff(backoff_ms)))
                return
            if verdict is MergeVerdict.REFUSED:
                self.refused += batch.records
            self._answered(producer, batch)

        slow = self.rng.random() < 0.02
        self.after(self.rng.randrange(200, 900) if slow else self.rng.randrange(1, 30), arrive)

    def _answered(self, producer: ShrinkingProducer, batch: QueuedBatch) -> None:
        producer.under_way.discard(batch.partition)
        self._send_next(producer, batch.partition)


def shown_at_once() -> PartitionMerge:
    """The new count is shown while clients still have queued what was sent back."""
    return PartitionMerge(TIMES._replace(show_after_ms=0))


def compare(title: str, make_merge: Callable[[], PartitionMerge], seeds: int) -> str:
    """One line about all seeds."""
    worlds = [HalvingWorld(seed, make_merge).run() for seed in range(seeds)]
    sent, failed = sum(len(world.sent) for world in worlds), sum(len(world.failed) for world in worlds)
    inversions = sum(len(world.inversions) for world in worlds)
    refused, undone = sum(len(world.refused) for world in worlds), sum(world.undone for world in worlds)
    shown = [(world.shown_ms - BEGINS_MS) / 1000 for world in worlds if world.shown_ms is not None]
    return (
        f"{title}: {seeds} halvings, {sent} records, {inversions} out of order, {refused} refused finally, {failed}"
        f" given up by clients; {undone} pauses undone; the new count was shown in {len(shown)}, after up to"
        f" {max(shown, default=0):.1f} s"
    )


def main() -> None:
    """Both rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    args = parser.parse_args()
    print(compare("the rule", merge, args.seeds))
    print(compare("the new count is shown at once", shown_at_once, args.seeds))


if __name__ == "__main__":
    main()
