"""Seeded interleavings of transactions on real Postgres: what is left must be a possible history of transactions.

Fault model: two producers with one transactional id (one of them is a zombie once the other one has begun), and one
with another id, in one group: batches to several partitions at once, ends of both kinds, repeated ends, new instances,
time-outs, offsets, and batches without a producer. Up to four operations at once queue up at the locks of the commit
shards and are let through in a drawn order (tests/metastore/lock_gates.py).
Invariant checked after each round, from the logs, the answers and the rows alone:
- every batch that was appended is in its partition's log at the offset of the answer, once
- a marker follows data of its producer id, and ends exactly the data since the marker before it
- a transaction has one outcome: its markers agree, in all partitions in which it has data
- no data of an epoch below a marker's comes after the marker
- aborted ranges are those of the abort markers, and the first open offset is the first data without a marker
- the group has exactly the offsets of the committed transactions
"""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from headrace.metastore.api.commit import BatchOutcome, FileCommit, StagedBatch
from headrace.metastore.api.read import NONE_OPEN, ExtentQuery, FeedKind, PartitionExtents
from headrace.metastore.api.transactions import NO_PRODUCER, LateTransaction, ProducerEpoch, TransactionVerdict
from headrace.metastore.keys import commit_shard
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.transaction_markers import Marker, marker_of
from tests.metastore.commit_scenes import batch, file_of, open_scene
from tests.metastore.lock_gates import Operation, Sessions, run_gated
from tests.metastore.transactions.transaction_scenes import (
    TIMEOUT_MS,
    Producer,
    claimed_group,
    position,
)

PARTITIONS = 4
GROUP = "g"
ROUNDS = 12


class Impossible(AssertionError):
    """No order of whole transactions leaves this."""


@dataclass
class TransactionHistory:
    """One database's past. `seed` decides everything but the operating system's timing."""

    store: PostgresMetastore
    sessions: Sessions
    seed: int
    producers: list[Producer] = field(default_factory=list)
    batches: dict[tuple[uuid.UUID, int], StagedBatch] = field(default_factory=dict)
    """What each file has for each partition."""
    answers: dict[tuple[uuid.UUID, int], int] = field(default_factory=dict)
    """The base offset of each batch that was appended, as the producer heard."""
    offsets: dict[ProducerEpoch, int] = field(default_factory=dict)
    """Offsets by transaction: the one that it commits for the group."""
    outcomes: dict[ProducerEpoch, bool] = field(default_factory=dict)
    """How transactions ended, as their producers heard."""
    feed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(high watermark, first open offset) of each partition by the feed."""

    async def begin(self) -> None:
        """Three producers of two ids; one group."""
        self.rng = random.Random(self.seed)
        self.scene = await open_scene(self.store, PARTITIONS)
        self.epoch = await claimed_group(self.scene, GROUP)
        self.producers = [Producer(self.scene, name) for name in ("one", "one", "two")]
        for producer in self.producers:
            await producer.init()
        self.heads = (await self.store.index.poll_feed({})).heads
        self.feed = dict.fromkeys(self.scene.keys, (0, NONE_OPEN))

    async def round(self) -> None:
        """Some operations at once, then look at everything."""
        operations = [self._operation() for _ in range(self.rng.choice([2, 3, 3, 4]))]
        shard = commit_shard(self.rng.choice(self.scene.keys), self.store.commit_shards)
        seen = await run_gated(self.sessions, self.rng, self.store.commit_shards, shard, operations)
        for operation, what in zip(operations, seen, strict=True):
            if isinstance(what, BaseException):
                raise Impossible(f"seed={self.seed} {operation.name}: {what!r}")
        try:
            await self._check()
        except Impossible as wrong:
            raise Impossible(f"seed={self.seed} {[op.name for op in operations]} {seen}: {wrong}") from None

    def _operation(self) -> Operation:
        producer = self.rng.choice(self.producers)
        kinds = [self._send, self._send, self._send, self._end, self._end, self._add_offsets, self._plain]
        seldom = [self._init, self._time_out, self._end_again, self._recommit]
        name, real = self.rng.choice([*kinds, *kinds, *seldom])(producer)

        async def unmodelled(model: object) -> None:
            raise NotImplementedError

        return Operation(name, real, unmodelled)

    def _send(self, producer: Producer) -> tuple[str, Any]:
        chosen = self.rng.sample(range(PARTITIONS), self.rng.choice([1, 2, 3]))
        return f"send {producer.who} {chosen}", lambda: self._commit(producer, chosen)

    async def _commit(self, producer: Producer, chosen: list[int]) -> Any:
        who, made = producer.who, [producer.batch(partition) for partition in chosen]
        file = file_of(made)
        (answer,) = await self._commit_file(file)
        if producer.who == who:
            for partition, item in zip(chosen, answer.batches, strict=True):
                if item.outcome is BatchOutcome.APPENDED:
                    producer.sequences[partition] = producer.sequences.get(partition, 0) + made[0].record_count
        return answer

    def _plain(self, _: Producer) -> tuple[str, Any]:
        file = file_of([batch(self.rng.choice(self.scene.keys))])
        return "plain", lambda: self._commit_file(file)

    def _recommit(self, producer: Producer) -> tuple[str, Any]:
        """A batch that comes again, in another file."""
        old = self.rng.choice(list(self.batches.values())) if self.batches else producer.batch(0)
        file = file_of([old if old.producer_id >= 0 else producer.batch(0)])
        return "again", lambda: self._commit_file(file)

    async def _commit_file(self, file: FileCommit) -> Any:
        for item in file.batches:
            self.batches[file.file_id, item.partition_key] = item
        found = await self.scene.commit(file)
        for item, answer in zip(file.batches, found[0].batches, strict=True):
            if answer.outcome is BatchOutcome.APPENDED:
                self.answers[file.file_id, item.partition_key] = answer.base_offset
        return found

    def _end(self, producer: Producer) -> tuple[str, Any]:
        commits = self.rng.random() < 0.6
        return f"end {producer.who} {commits=}", lambda: self._ask_end(producer, producer.who, commits=commits)

    def _end_again(self, producer: Producer) -> tuple[str, Any]:
        who = producer.who._replace(epoch=max(producer.who.epoch - 1, 0))
        commits = self.outcomes.get(who, True)
        return f"end again {who} {commits=}", lambda: self._ask_end(producer, who, commits=commits)

    async def _ask_end(self, producer: Producer, who: ProducerEpoch, *, commits: bool) -> Any:
        answer = await producer.ask_end(who, commits=commits)
        if answer.verdict is TransactionVerdict.DONE:
            if self.outcomes.setdefault(who, commits) != commits:
                raise Impossible(f"two outcomes of {who}")
            if producer.who == who:
                producer.who = answer.producer
                producer.sequences.clear()
        return answer

    def _add_offsets(self, producer: Producer) -> tuple[str, Any]:
        who, offset = producer.who, self.rng.randrange(1, 1_000_000)
        positions = [position(self.scene.keys[0], offset)]

        async def add() -> Any:
            answer = await self.store.transactions.add_pending_offsets(
                producer.transactional_id, who, GROUP, self.epoch, positions, adds_group=True
            )
            if answer.verdict is TransactionVerdict.DONE:
                self.offsets[who] = offset
            return answer

        # one call at a time for each transaction, as a client does
        return f"offsets {who}", add

    def _init(self, producer: Producer) -> tuple[str, Any]:
        async def init() -> Any:
            return await producer.init(NO_PRODUCER)

        return f"init {producer.transactional_id}", init

    def _time_out(self, producer: Producer) -> tuple[str, Any]:
        late = LateTransaction(producer.transactional_id, (1 << 53) + TIMEOUT_MS)
        return f"time out {producer.transactional_id}", lambda: self.store.transactions.time_out_transaction(late)

    # -- what must hold

    async def _check(self) -> None:
        views = await self.store.index.find_extents([ExtentQuery(key, 0, 1 << 40) for key in self.scene.keys])
        ended: dict[tuple[int, int], set[bool]] = defaultdict(set)
        seen: set[tuple[uuid.UUID, int]] = set()
        for view in views:
            self._check_partition(view, ended, seen)
        lost = self.answers.keys() - seen
        if lost:
            raise Impossible(f"acknowledged batches are not in the log: {lost}")
        for transaction, kinds in ended.items():
            heard = self.outcomes.get(ProducerEpoch(*transaction))
            if len(kinds) != 1 or heard not in (None, *kinds):
                raise Impossible(f"two outcomes: {transaction} markers={kinds} {heard=}")
        await self._check_feed(views)
        await self._check_offsets()

    def _check_partition(
        self, view: PartitionExtents, ended: dict[tuple[int, int], set[bool]], seen: set[tuple[uuid.UUID, int]]
    ) -> None:
        key, fence = view.partition_key, defaultdict[int, int](lambda: -1)
        open_data: dict[Any, Any] = {}
        aborts: list[Any] = []
        next_offset = 0
        for extent in view.extents:
            if extent.base_offset != next_offset:
                raise Impossible(f"a gap in {key} at {next_offset}")
            next_offset = extent.last_offset + 1
            marker = marker_of(extent.source)
            if marker is None:
                data = self.batches[extent.source, key]
                seen.add((extent.source, key))
                if self.answers.get((extent.source, key), extent.base_offset) != extent.base_offset:
                    raise Impossible(f"another offset than answered: {extent}")
                if data.producer_id >= 0:
                    if data.producer_epoch < fence[data.producer_id]:
                        raise Impossible(f"data of a fenced epoch in {key}: {data}")
                    first, epoch = open_data.setdefault(data.producer_id, (extent.base_offset, data.producer_epoch))
                    if epoch != data.producer_epoch:
                        raise Impossible(f"a transaction of {data.producer_id} in {key} was not ended: {first=}")
                continue
            self._check_marker(key, marker, open_data, ended)
            fence[marker.producer_id] = marker.epoch
            first, _ = open_data.pop(marker.producer_id)
            if not marker.commits:
                aborts.append((marker.producer_id, first, extent.base_offset))
        if next_offset != view.high_watermark:
            raise Impossible(f"high watermark {view.high_watermark} of {key} is not {next_offset}")
        expected = min((first for first, _ in open_data.values()), default=NONE_OPEN)
        if view.first_open_offset != expected:
            raise Impossible(f"first open offset of {key}: {view.first_open_offset} instead of {expected}")
        if [(a.producer_id, a.first_offset, a.last_offset) for a in view.aborted] != aborts:
            raise Impossible(f"aborted ranges of {key}: {view.aborted} instead of {aborts}")

    @staticmethod
    def _check_marker(
        key: int, marker: Marker, open_data: dict[int, tuple[int, int]], ended: dict[tuple[int, int], set[bool]]
    ) -> None:
        if marker.producer_id not in open_data:
            raise Impossible(f"a marker without data in {key}: {marker}")
        epoch = open_data[marker.producer_id][1]
        if marker.epoch != epoch + 1:
            raise Impossible(f"a marker of another epoch in {key}: {marker}, data of epoch {epoch}")
        ended[marker.producer_id, epoch].add(marker.commits)

    async def _check_feed(self, views: list[PartitionExtents]) -> None:
        """The feed alone leads to the same state."""
        page = await self.store.index.poll_feed(self.heads)
        self.heads = page.heads
        for row in page.rows:
            for extent in row.extents:
                head, first_open = self.feed[extent.partition_key]
                if extent.base_offset != head:
                    raise Impossible(f"the feed has a gap: {extent} after {head}")
                self.feed[extent.partition_key] = extent.last_offset + 1, first_open
            for key, first_open in row.first_open_offsets.items():
                if row.kind is not FeedKind.TRANSACTION:
                    raise Impossible(f"row of another kind: {row}")
                self.feed[key] = self.feed[key][0], first_open
        for view in views:
            if self.feed[view.partition_key] != (view.high_watermark, view.first_open_offset):
                raise Impossible(f"the feed says {self.feed[view.partition_key]}, the primary {view}")

    async def _check_offsets(self) -> None:
        """The group's offset is one that a committed transaction had, and none is pending for an ended one."""
        found = await self.store.groups.fetch_offsets(GROUP, None)
        rows = await self.store.transactions.find_transactions()
        open_now = {row.producer for row in rows if row.groups}
        if any(offset.is_pending for offset in found) != bool(open_now & self.offsets.keys()):
            raise Impossible(f"pending offsets: {found} open={open_now}")
        possible = {self.offsets[who] for who, commits in self.outcomes.items() if commits and who in self.offsets}
        stored = {offset.offset for offset in found if offset.offset >= 0}
        if not stored <= possible or (possible and not stored):
            raise Impossible(f"offsets of the group: {stored} possible={possible}")


async def played(url: str, store: PostgresMetastore, seed: int, rounds: int = ROUNDS) -> None:
    """A history of so many rounds; Impossible names its seed."""
    async with Sessions(url) as sessions:
        history = TransactionHistory(store, sessions, seed)
        await history.begin()
        for _ in range(rounds):
            await history.round()
