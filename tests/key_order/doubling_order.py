"""A topic doubles under unmodified producers, in memory: order per key, records that are lost, and how long keys wait.

Place: `python -m tests.key_order.doubling_order [--seeds 40]` compares the rule of metastore/partitions/splitting.py
with one in which producers do not wait, and with an early boundary. Tests run some seeds, and planted bugs.
Fault model: clients refresh late, keep what they have queued where it is, and repeat batches after a pause; some send
rarely; connections break before a request or after it. No agent shows the old count after another one has shown the new
count: the server must see to that, and `spread_ms` shows what happens otherwise. Time is a number of milliseconds; a
seed decides all.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable

from headrace.metastore.partitions.splitting import PRODUCER_QUIET_MS, PartitionSplit, SplitVerdict
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

BEGINS_MS, ENDS_MS = 1_000, 30_000
EVERY_MS = (40, 40, 40, 40, 1_500, 4_000)
"""Each producer sends a record so often, on average."""
REFRESH_MS = 9_000
BOUNDARY_MS = 10_000
RECONNECT_MS = 1_000
"""The longest pause after a connection broke: reconnect.backoff.max.ms."""


def split(began_ms: int) -> PartitionSplit:
    """Split the topic with a time for the boundary that fits REFRESH_MS."""
    return PartitionSplit(began_ms, boundary_quiet_ms=BOUNDARY_MS)


def without_waiting(began_ms: int) -> PartitionSplit:
    """The child takes each producer's records at once."""
    return PartitionSplit(began_ms, producer_quiet_ms=0, boundary_quiet_ms=BOUNDARY_MS)


def with_early_boundary(began_ms: int) -> PartitionSplit:
    """Before clients that send rarely know the new count."""
    return PartitionSplit(began_ms, boundary_quiet_ms=PRODUCER_QUIET_MS)


class DoublingWorld(Events):
    """One seed. `run`, then ask for `inversions`, `refused` and the times."""

    spread_ms = 0
    """Agents show the new count so far apart."""

    def __init__(self, seed: int, make_split: Callable[[int], PartitionSplit] = split) -> None:
        super().__init__(seed)
        self.splits: dict[int, PartitionSplit] = {}
        self._make_split = make_split
        self.logs: defaultdict[int, list[SentRecord]] = defaultdict(list)
        self.stored: set[QueuedBatch] = set()
        self.refused: list[SentRecord] = []
        self.sent: list[SentRecord] = []
        self.boundaries: dict[int, int] = {}
        """Parent -> its boundary: an offset."""
        self.boundary_ms: dict[int, int] = {}
        self.waited_ms: list[int] = []
        """From the time at which a client sent a batch for a child first until it was appended."""
        self._first_sent_ms: dict[QueuedBatch, int] = {}
        self.producers = [UnmodifiedProducer(number) for number in range(len(EVERY_MS))]

    def run(self) -> DoublingWorld:
        """Run until every producer has an answer for each of its batches."""
        self.after(BEGINS_MS, self._begin)
        for producer in self.producers:
            self.after(self.rng.randrange(EVERY_MS[producer.number]), lambda producer=producer: self._produce(producer))  # type: ignore[misc]
            self.after(self.rng.randrange(REFRESH_MS), lambda producer=producer: self._age(producer))  # type: ignore[misc]
        self.run_all()
        for parent in range(COUNT):
            self.boundaries.setdefault(parent, len(self.logs[parent]))
        return self

    @property
    def inversions(self) -> list[SentRecord]:
        """Records that are read after a newer one of their producer and key, if the child is read at the boundary."""
        found: list[SentRecord] = []
        for parent in range(COUNT):
            log, boundary = self.logs[parent], self.boundaries[parent]
            found += behind_newer([*log[:boundary], *self.logs[parent + COUNT], *log[boundary:]])
        return found

    # -- the server

    def _begin(self) -> None:
        self.splits = {parent: self._make_split(self.now) for parent in range(COUNT)}

    def shown_count(self) -> int:
        """Return the shown count by any agent."""
        return COUNT if self.now < BEGINS_MS + self.rng.randint(0, self.spread_ms) else 2 * COUNT

    def commit(self, producer: int, batch: QueuedBatch) -> SplitVerdict:
        """A stored batch is a duplicate."""
        if batch in self.stored:
            return SplitVerdict.APPENDED
        verdict = self.judge(producer, batch) if self.splits else SplitVerdict.APPENDED
        if verdict is SplitVerdict.APPENDED:
            self.stored.add(batch)
            self.logs[batch.partition] += batch.records
            if batch.partition >= COUNT:
                self.waited_ms.append(self.now - self._first_sent_ms.pop(batch))
        return verdict

    def judge(self, producer: int, batch: QueuedBatch) -> SplitVerdict:
        """Judge by the parent's split."""
        parent = batch.partition % COUNT
        split = self.splits[parent]
        if batch.partition >= COUNT:
            verdict = split.to_child(producer, self.now)
        else:
            moved = any(record.key % (2 * COUNT) != batch.partition for record in batch.records)
            verdict = split.to_parent(producer, moved, self.now)
        if split.has_boundary and parent not in self.boundaries:
            self.boundaries[parent] = len(self.logs[parent])
            self.boundary_ms[parent] = self.now
        return verdict

    # -- a client

    def _produce(self, producer: UnmodifiedProducer) -> None:
        partition, record = producer.produce(self.rng.randrange(KEYS))
        self.sent.append(record)
        self._send_next(producer, partition)
        if self.now < ENDS_MS:
            self.after(1 + self.rng.randrange(2 * EVERY_MS[producer.number]), lambda: self._produce(producer))

    def _age(self, producer: UnmodifiedProducer) -> None:
        """Its metadata reached metadata.max.age.ms."""
        self._refresh(producer)
        if self.now < ENDS_MS:
            self.after(REFRESH_MS, lambda: self._age(producer))

    def _refresh(self, producer: UnmodifiedProducer) -> None:
        def answered() -> None:
            producer.count = self.shown_count()

        self.after(self.rng.randrange(5, 60), answered)

    def _send_next(self, producer: UnmodifiedProducer, partition: int) -> None:
        batch = producer.next_batch(partition)
        if batch is not None:
            self._first_sent_ms[batch] = self.now
            self._send(producer, batch)

    def _send(self, producer: UnmodifiedProducer, batch: QueuedBatch, backoff_ms: int = 100) -> None:
        fate = self.rng.random()
        if fate < 0.005:  # the request is lost, with the connection
            self.after(self.rng.randrange(RECONNECT_MS), lambda: self._send(producer, batch))
            return

        def arrive() -> None:
            verdict = self.commit(producer.number, batch)
            if fate > 0.99:  # the answer is lost, with the connection
                self.after(self.rng.randrange(RECONNECT_MS), lambda: self._send(producer, batch))
            else:
                self.after(self.rng.randrange(1, 30), lambda: self._answered(producer, batch, verdict, backoff_ms))

        self.after(self.rng.randrange(1, 30), arrive)

    def _answered(
        self, producer: UnmodifiedProducer, batch: QueuedBatch, verdict: SplitVerdict, backoff_ms: int
    ) -> None:
        if verdict is SplitVerdict.SEND_AGAIN:
            self._refresh(producer)
            pause = drawn_backoff(self.rng, backoff_ms)
            self.after(pause, lambda: self._send(producer, batch, next_backoff(backoff_ms)))
            return
        if verdict is SplitVerdict.REFUSED:
            self.refused += batch.records
        producer.under_way.discard(batch.partition)
        self._send_next(producer, batch.partition)


def compare(title: str, make_split: Callable[[int], PartitionSplit], seeds: int) -> str:
    """One line about all seeds."""
    worlds = [DoublingWorld(seed, make_split).run() for seed in range(seeds)]
    sent, refused = sum(len(world.sent) for world in worlds), sum(len(world.refused) for world in worlds)
    inversions = sum(len(world.inversions) for world in worlds)
    wait = max(max(world.waited_ms) for world in worlds)
    boundary = max(max(world.boundary_ms.values()) for world in worlds) - BEGINS_MS
    return (
        f"{title}: {seeds} doublings, {sent} records, {inversions} out of order, {refused} refused finally; a batch for"
        f" a child waited up to {wait / 1000:.1f} s, groups could read children after up to {boundary / 1000:.1f} s"
    )


def main() -> None:
    """All three rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    args = parser.parse_args()
    print(compare("the rule", split, args.seeds))
    print(compare("producers do not wait", without_waiting, args.seeds))
    print(compare("an early boundary", with_early_boundary, args.seeds))


if __name__ == "__main__":
    main()
