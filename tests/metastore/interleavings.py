"""Seeded interleavings of real Postgres sessions at their lock points, each round explained by the model or not.

Fault model: two to four operations at once, of those that race in production: commits (overlapping
partitions, producers that repeat batches through another agent, the same file twice), a topic's
deletion and the purge of what it left, log-start moves, compaction's swaps, the sweeper's condemnations, the
janitor's taking and dropping of files, a leader epoch that moves, producers that expire. The operations queue
up in a drawn order at gates (lock_gates.py), which open one by one in a drawn order. Between two rounds the
metastore's clock may move on, so far that answers and dead files come of age.
Invariant checked: some order of the round's operations, one after the other, makes the reference model
give the same answers, extents, producers, feed and files, live bytes among them; every extent's file is live;
and in the end all bytes add up. An error, a deadlock among them, is a finding.
"""

from __future__ import annotations

import copy
import itertools
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.metastore.api.agents import RegisteredAgent
from headrace.metastore.api.commit import FileCommit, StagedBatch
from headrace.metastore.api.compaction import NewFile, Swap, SwapInput, SwapOutcome
from headrace.metastore.api.read import Extent, ExtentQuery, LogStartMove
from headrace.metastore.api.retention import LogStartAnswer, LogStartTarget
from headrace.metastore.keys import commit_shard
from headrace.metastore.postgres.statement import Statement
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import NotFoundError
from tests.metastore.byte_sums import unaccounted
from tests.metastore.commit_scenes import BATCH_BYTES, batch, file_of
from tests.metastore.interleaved_files import FileEnds
from tests.metastore.lock_gates import ASIDE, Operation, Sessions, run_gated
from tests.metastore.sessions import create, delete, join, new_topic, rows, set_for_cluster
from tests.model.file_model import ModelWithFiles, ShiftedClock

PARTITIONS = 4
PRODUCERS = (1000, 1001)
NO_HOUR = 10_000_000
"""Later than any: all producers that were learned of until now are forgotten."""
FORGET_PRODUCERS = Statement("forget_producers", writes=True)
OPERATIONS_MAX = 4
"""The same as many as the pool has connections: an operation that waits for one would delay all others."""
MOVER = 3
"""The number of a session that moves a leader epoch."""
STEPS_MAX = 6
"""Most steps of one round: the orders to look through are their permutations."""


class Unexplained(AssertionError):
    """No order of a round's operations explains what was seen."""


@dataclass
class History(FileEnds):
    """One database's past, and what may happen next. `seed` decides everything but the operating system's timing."""

    agents: list[RegisteredAgent] = field(default_factory=list)
    expired_shard: int = 0
    """The commit shard of which the model forgets producers; each is tried."""
    topics: dict[int, uuid.UUID] = field(default_factory=dict)
    keys: list[int] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)

    async def begin(self) -> None:
        """Two agents, two topics, one compactor."""
        self.rng = random.Random(self.seed)
        self.model = ModelWithFiles(ShiftedClock(), shards=self.store.commit_shards)
        for _ in range(2):
            self.agents.append(await join(self.store))
            self.model.register_agent(*self.agents[-1])
        for _ in range(2):
            await self._make_topic()
        self.positions = dict.fromkeys(range(self.store.commit_shards), 0)
        await set_for_cluster(self.store, "file.delete.delay.ms", -1_000)
        await self.begin_jobs()

    async def end(self) -> None:
        """Live bytes and sizes are what the extents say."""
        if wrong := await unaccounted(await self.sessions.get(ASIDE)):
            raise Unexplained(f"seed={self.seed} bytes do not add up: {wrong}")

    async def round(self) -> None:
        """Run some operations at once and look for an order that explains them."""
        if len(self.topics) < 2:
            await self._make_topic()
        if self.ends_files and self.rng.random() < 0.2:
            await self.age()
        self.model.metadata_offset = await self.store.cluster.metadata_head()  # configs are records of the log, too
        operations = self._draw()
        busy = commit_shard(self.rng.choice(self._live_keys()), self.store.commit_shards)
        seen = await run_gated(self.sessions, self.rng, self.store.commit_shards, busy, operations)
        errors = [f"{op.name}: {what!r}" for op, what in zip(operations, seen, strict=True) if _is_error(what)]
        if errors:
            raise Unexplained(f"seed={self.seed} {[op.name for op in operations]} {errors}")
        followed, others = self._parts()
        page, other_page = await self.store.index.poll_feed(followed), await self.store.index.poll_feed(others)
        reads = await self.store.index.find_extents(self._everything())
        producers = await self.store.reports.describe_producers(self.keys)
        files = await self.real_files()
        forgotten = (False, True) if self.purged_rows == 1 else (False,)
        variants = itertools.product(range(self.store.commit_shards), forgotten, _orders(operations))
        for self.expired_shard, self.has_forgotten, order in variants:
            model = copy.deepcopy(self.model)
            told = await _told(model, operations, order)
            if (
                all(told[index] == seen[index] for index in order)
                and await model.find_extents(self._everything()) == reads
                and await model.describe_producers(self.keys) == producers
                and (await model.poll_feed(followed)).rows == page.rows
                and (await model.poll_feed(others)).rows == other_page.rows
                and page.heads == other_page.heads
                and model.view() == files
            ):
                self.model = model
                self.positions = dict(page.heads)
                return
        raise Unexplained(f"seed={self.seed} {[op.name for op in operations]} answers={seen}")

    def _parts(self) -> tuple[dict[int, int], dict[int, int]]:
        """The positions of two agents, each of which follows a part of the feed."""
        rng = random.Random(f"{self.seed} {sorted(self.positions.items())}")
        followed = {shard: seq for shard, seq in self.positions.items() if rng.random() < 0.5}
        return followed, {shard: seq for shard, seq in self.positions.items() if shard not in followed}

    # -- what may happen

    def _draw(self) -> list[Operation]:
        operations = [self._commit() for _ in range(self.rng.choice([1, 1, 2, 2, 3]))]
        seldom = [self._commit, self._condemn, self._commit_again, self._move_leader_epoch, self._expire_producers]
        often = [self._move_log_starts, self._swap, *[self._delete_topic] * 2]
        operations.append(self.rng.choice([*seldom, *often * 2])())
        draws = [[self._move_log_starts, self._swap]]
        if self.ends_files:
            draws.append([self._condemn, self._take_dead_files, self._drop_files, self._purge])
        for kinds in draws:
            if self.rng.random() < 0.5:
                another = self.rng.choice(kinds)()
                if len(operations) < OPERATIONS_MAX and len(_steps([*operations, another])) <= STEPS_MAX:
                    operations.append(another)
        return operations

    def _commit(self) -> Operation:
        files = [self._file() for _ in range(self.rng.choice([1, 1, 2]))]
        return self._commit_of(files)

    def _commit_again(self) -> Operation:
        """A file that is committed at the same time by another session, or was before."""
        return self._commit_of([self.rng.choice(self.files[-4:])])

    def _commit_of(self, files: list[FileCommit]) -> Operation:
        agent = self.rng.choice(self.agents)
        self.files += [file for file in files if file not in self.files]
        return Operation(
            f"commit {len(files)} files",
            lambda: self.store.commits.commit_files(*agent, files),
            lambda model: model.commit_files(*agent, files),
        )

    def _delete_topic(self) -> Operation:
        number = self.rng.choice(sorted(self.topics))
        topic_id = self.topics.pop(number)

        async def modelled(model: ModelWithFiles) -> None:
            model.delete_topic(number)

        return Operation("delete topic", lambda: _deleted(self.store, topic_id), modelled)

    def _move_log_starts(self) -> Operation:
        """Retention or DeleteRecords, of several partitions, a few extents at a time."""
        targets = []
        for key in self.rng.sample(self._live_keys(), self.rng.choice([1, 2, 3])):
            partition = self.model.partitions[key]
            offsets = [-1, self.rng.randint(partition.log_start_offset, partition.high_watermark)]
            targets.append(LogStartTarget(key, self.rng.choice(offsets)))
        return self._move(targets, self.rng.choice([2, 1000]))

    def _move(self, targets: list[LogStartTarget], most: int) -> Operation:
        moves: list[LogStartMove] = []

        async def modelled(model: ModelWithFiles) -> list[LogStartAnswer]:
            answers, moves[:] = model.decide_log_starts(targets, max_extents=most)
            return answers

        return Operation(
            f"move log starts {targets} most={most}",
            lambda: self.store.retention.move_log_starts(targets, max_extents=most),
            modelled,
            lambda model: model.announce_log_starts(moves),
        )

    def _swap(self) -> Operation:
        """Compaction of what some partitions hold, or the same once more: its answer may have been lost."""
        if not self.swaps or self.rng.random() < 0.8:
            keys = self.rng.sample(self._live_keys(), self.rng.choice([1, 2, 3]))
            swaps = [swap for key in keys if (swap := self._merged(key)) is not None]
            size = sum(swap.length for swap in swaps)
            file = NewFile(self.new_id(), 1, size, size)
            if self.ends_files and self.swaps and self.rng.random() < 0.25:  # one more call for a file, dead or alive
                file = self.swaps[-1][0]
            self.swaps.append((file, swaps))
        file, swaps = self.rng.choice(self.swaps[-2:])
        taking_over: list[Extent] = []

        async def real() -> list[SwapOutcome] | None:
            try:
                return await self.store.compaction.swap_extents(self.token, file, swaps)
            except NotFoundError:
                return None

        async def modelled(model: ModelWithFiles) -> list[SwapOutcome] | None:
            if not swaps:
                return []
            outcomes, taking_over[:] = model.decide_swaps(file.file_id, swaps)
            return outcomes

        return Operation(
            f"swap {swaps}",
            real,
            modelled,
            lambda model: model.announce_swaps(taking_over),
        )

    def _merged(self, key: int) -> Swap | None:
        """One extent in the place of a few that are neighbours now, under one leader epoch."""
        extents = self.model.partitions[key].visible_extents
        if not extents:
            return None
        first = self.rng.randrange(len(extents))
        inputs = extents[first : first + self.rng.choice([1, 2, 4])]
        inputs = [extent for extent in inputs if extent.leader_epoch == inputs[0].leader_epoch]
        return Swap(
            *(key, inputs[0].base_offset, inputs[-1].last_offset, key % PARTITIONS * BATCH_BYTES),
            sum(extent.length for extent in inputs),
            inputs[0].leader_epoch,
            max(extent.max_timestamp for extent in inputs),
            tuple(SwapInput(extent.last_offset, extent.source) for extent in inputs),
        )

    def _move_leader_epoch(self) -> Operation:
        """The same as any code that moves one has to: the partition's row, then its shard's lock, for a commit
        judges by it.
        """
        key = self.rng.choice(self._live_keys())
        epoch = self.model.partitions[key].leader_epoch + 1

        async def real() -> bool:
            mover = await self.sessions.get(MOVER)
            async with mover.transaction():
                await rows(mover, "SELECT 1 FROM partitions WHERE partition_key = %s FOR NO KEY UPDATE", key)
                shard = commit_shard(key, self.store.commit_shards)
                await rows(mover, "SELECT lock_shards(ARRAY[%s]::smallint[])", shard)
                moved = "UPDATE partitions SET leader_epoch = %s WHERE partition_key = %s RETURNING 1"
                return bool(await rows(mover, moved, epoch, key))

        async def modelled(model: ModelWithFiles) -> bool:
            if key not in model.partitions:
                return False
            model.set_leader_epoch(key, epoch)
            return True

        return Operation("move leader epoch", real, modelled)

    def _expire_producers(self) -> Operation:
        """Housekeeping looks for the silent first, and takes the lock of one of their shards then: `expired_shard`."""
        silent: list[tuple[int, int]] = []

        async def real() -> None:
            await FORGET_PRODUCERS.row(self.store.pool, hour=NO_HOUR, limit=1_000)

        async def modelled(model: ModelWithFiles) -> None:
            silent[:] = [
                (key, producer)
                for key, partition in model.partitions.items()
                for producer in partition.producers
                if commit_shard(key, self.store.commit_shards) == self.expired_shard
            ]

        def forget(model: ModelWithFiles) -> None:
            for key, producer in silent:
                if key in model.partitions:
                    model.partitions[key].producers.pop(producer, None)

        return Operation("expire producers", real, modelled, forget)

    def _file(self) -> FileCommit:
        return file_of([self._batch() for _ in range(self.rng.choice([1, 2, 4]))], age_ms=-self.shift_ms)

    def _batch(self) -> StagedBatch:
        """Make a batch in sequence as of the round's start, an earlier one again, or of no producer."""
        key, producer = self.rng.choice(self.keys), self.rng.choice(PRODUCERS)
        partition = self.model.partitions.get(key)
        state = partition.producers.get(producer) if partition else None
        epoch = partition.leader_epoch if partition else 0
        told = self.rng.choice([-1, -1, epoch, max(epoch - 1, 0)])
        match self.rng.choice(["none", "next", "next", "again"]):
            case "none":
                return batch(key, leader_epoch=told)
            case "again" if state and state.ring:
                return batch(key, self.rng.choice(state.ring).base_sequence, producer=producer, leader_epoch=told)
        return batch(key, state.next_sequence if state else 0, producer=producer, leader_epoch=told)

    async def _make_topic(self) -> None:
        topic = new_topic(f"topic-{uuid.uuid4()}", PARTITIONS)
        image = await create(self.store, topic)
        number = image.topics_by_id[topic.topic_id].topic_number
        self.topics[number] = topic.topic_id
        self.keys = [*self.keys[-PARTITIONS:], *self.model.create_topic(number, PARTITIONS)]

    def _live_keys(self) -> list[int]:
        return sorted(self.model.partitions)

    def _everything(self) -> list[ExtentQuery]:
        return [ExtentQuery(key, 0, 1 << 40) for key in self.keys]


def _orders(operations: list[Operation]) -> Iterator[tuple[int, ...]]:
    """Every order of the operations' steps; an operation that announces is in it twice."""
    return iter(set(itertools.permutations(_steps(operations))))


def _steps(operations: list[Operation]) -> list[int]:
    return [i for i, op in enumerate(operations) for _ in range(1 if op.announced is None else 2)]


async def _told(model: ModelWithFiles, operations: list[Operation], order: tuple[int, ...]) -> dict[int, Any]:
    """Return what each caller learns if their steps happen in this order."""
    told: dict[int, Any] = {}
    for index in order:
        announce = operations[index].announced
        if index not in told:
            told[index] = await operations[index].modelled(model)
        elif announce is not None:
            announce(model)
    return told


async def _deleted(store: PostgresMetastore, topic_id: uuid.UUID) -> None:
    await delete(store, topic_id)


def _is_error(what: object) -> bool:
    return isinstance(what, BaseException)


async def played(
    url: str, store: PostgresMetastore, seed: int, rounds: int, made: type[History] = History, *, ends_files: bool
) -> None:
    """A database takes one history: the model knows its feed from the first row on."""
    async with Sessions(url) as sessions:
        history = made(sessions, store, seed, ends_files)
        await history.begin()
        for _ in range(rounds):
            await history.round()
        await history.end()
