"""Seeded interleavings of real Postgres sessions at their lock points, each round explained by the model or not.

Fault model: two to four operations at once, of those that race in production: commits (overlapping
partitions, producers that repeat batches through another agent, the same file twice), a topic's
deletion, a condemned file id, log-start moves, compaction's swaps, a leader epoch that moves, producers that
expire. Gates hold every commit shard's lock, and sometimes a
shard's feed row; the operations queue up in a drawn order, then the gates open one by one in a drawn
order, and between two openings everybody runs until it is done or waits again.
Invariant checked: some order of the round's operations, one after the other, makes the reference model
give the same answers, extents, producers and feed, and in the end all bytes add up. An error, a deadlock
among them, is a finding.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from metastore.compaction import NewFile, Swap, SwapInput, SwapOutcome
from metastore.jobs import JobToken, NewJob
from metastore.keys import commit_shard
from metastore.postgres.producer_ids import expire_producer_state
from metastore.postgres.store import PostgresMetastore
from metastore.retention import LogStartAnswer, LogStartTarget
from metastore.values import Extent, ExtentQuery, FileCommit, LogStartMove, RegisteredAgent, StagedBatch
from storage.errors import HeadraceError
from storage.file_id import new_file_id
from tests.metastore.byte_sums import unaccounted
from tests.metastore.commit_scenes import BATCH_BYTES, COMMIT_LOCK_CLASS, batch, file_of
from tests.metastore.sessions import Session, create, delete, join, new_topic, rows, session
from tests.model.metastore_model import ModelMetastore

PARTITIONS = 4
PRODUCERS = (1000, 1001)
EVERYBODY_MS = -2 * 3_600_000
"""producer.id.expiration.ms under which all that were heard of until now are forgotten."""
STEPS_MAX = 6
"""Of one round: the orders to look through are their permutations."""
WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()"
)


class Unexplained(AssertionError):
    """No order of a round's operations explains what was seen."""


@dataclass
class Operation:
    """`real` runs it on Postgres, `modelled` on a model; both return what its caller learns.

    `announced`: what it does to the model later; others may come in between.
    """

    name: str
    real: Callable[[], Coroutine[Any, Any, Any]]
    modelled: Callable[[ModelMetastore], Coroutine[Any, Any, Any]]
    announced: Callable[[ModelMetastore], None] | None = None


@dataclass
class History:
    """One database's past, and what may happen next. `seed` decides everything but the operating system's timing."""

    url: str
    store: PostgresMetastore
    seed: int
    model: ModelMetastore = field(init=False)
    rng: random.Random = field(init=False)
    agents: list[RegisteredAgent] = field(default_factory=list)
    topics: dict[int, uuid.UUID] = field(default_factory=dict)
    keys: list[int] = field(default_factory=list)
    files: list[FileCommit] = field(default_factory=list)
    condemned: set[uuid.UUID] = field(default_factory=set)
    positions: dict[int, int] = field(default_factory=dict)
    swaps: list[tuple[NewFile, list[Swap]]] = field(default_factory=list)
    token: JobToken = field(init=False)

    async def begin(self) -> None:
        """Two agents, two topics, one compactor."""
        self.rng = random.Random(self.seed)
        self.model = ModelMetastore(shards=self.store.commit_shards)
        for _ in range(2):
            self.agents.append(await join(self.store))
            self.model.register_agent(*self.agents[-1])
        for _ in range(2):
            await self._make_topic()
        self.positions = dict.fromkeys(range(self.store.commit_shards), 0)
        await self.store.enqueue_jobs([NewJob("interleaved", "compaction")])
        job = await self.store.claim_job("test", ["interleaved"], lease_ms=3_600_000)
        assert job is not None
        self.token = job.token

    async def end(self) -> None:
        """Live bytes and sizes are what the extents say."""
        async with session(self.url) as auditor:
            if wrong := await unaccounted(auditor):
                raise Unexplained(f"seed={self.seed} bytes do not add up: {wrong}")

    async def round(self) -> None:
        """Run some operations at once and look for an order that explains them."""
        if len(self.topics) < 2:
            await self._make_topic()
        operations = self._draw()
        busy = commit_shard(self.rng.choice(self._live_keys()), self.store.commit_shards)
        seen = await _run_gated(self.url, self.rng, self.store.commit_shards, busy, operations)
        errors = [f"{op.name}: {what!r}" for op, what in zip(operations, seen, strict=True) if _is_error(what)]
        if errors:
            raise Unexplained(f"seed={self.seed} {errors}")
        page = await self.store.poll_feed(self.positions)
        reads = await self.store.find_extents(self._everything())
        producers = await self.store.describe_producers(self.keys)
        for order in _orders(operations):
            model = copy.deepcopy(self.model)
            told = await _told(model, operations, order)
            if (
                all(told[index] == seen[index] for index in order)
                and await model.find_extents(self._everything()) == reads
                and await model.describe_producers(self.keys) == producers
                and (await model.poll_feed(self.positions)).rows == page.rows
            ):
                self.model = model
                self.positions = dict(page.heads)
                return
        raise Unexplained(f"seed={self.seed} {[op.name for op in operations]} answers={seen}")

    # -- what may happen

    def _draw(self) -> list[Operation]:
        operations = [self._commit() for _ in range(self.rng.choice([1, 1, 2, 2, 3]))]
        seldom = [self._commit, self._condemn, self._commit_again, self._move_leader_epoch, self._expire_producers]
        often = [self._move_log_starts, self._swap, *[self._delete_topic] * 2]
        operations.append(self.rng.choice([*seldom, *often * 2])())
        if self.rng.random() < 0.5:
            another = self.rng.choice([self._move_log_starts, self._swap])()
            if len(operations) < 4 and len(_steps([*operations, another])) <= STEPS_MAX:
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
            lambda: self.store.commit_files(*agent, files),
            lambda model: model.commit_files(*agent, files),
        )

    def _condemn(self) -> Operation:
        """The sweeper takes a file that is being committed for garbage."""
        open_ids = [file.file_id for file in self.files[-4:] if file.file_id not in self.condemned]
        file_id = self.rng.choice(open_ids) if open_ids else uuid.uuid4()
        self.condemned.add(file_id)

        async def real() -> bool:
            async with session(self.url) as sweeper:
                inserted = await rows(
                    sweeper,
                    "INSERT INTO segment_files (file_id, state, size, live_bytes, committed_at)"
                    " VALUES (%s, 1, 0, 0, clock_timestamp()) ON CONFLICT DO NOTHING RETURNING 1",
                    file_id,
                )
                return bool(inserted)

        async def modelled(model: ModelMetastore) -> bool:
            return model.condemn(file_id)

        return Operation("condemn", real, modelled)

    def _delete_topic(self) -> Operation:
        number = self.rng.choice(sorted(self.topics))
        topic_id = self.topics.pop(number)

        async def modelled(model: ModelMetastore) -> None:
            model.delete_topic(number)

        return Operation("delete topic", lambda: _deleted(self.store, topic_id), modelled)

    def _move_log_starts(self) -> Operation:
        """Retention or DeleteRecords, of several partitions, a few extents at a time."""
        targets = []
        for key in self.rng.sample(self._live_keys(), self.rng.choice([1, 2, 3])):
            partition = self.model.partitions[key]
            offsets = [-1, self.rng.randint(partition.log_start_offset, partition.high_watermark)]
            targets.append(LogStartTarget(key, self.rng.choice(offsets)))
        most = self.rng.choice([2, 1000])
        moves: list[LogStartMove] = []

        async def modelled(model: ModelMetastore) -> list[LogStartAnswer]:
            answers, moves[:] = model.decide_log_starts(targets, max_extents=most)
            return answers

        return Operation(
            f"move log starts {targets} most={most}",
            lambda: self.store.move_log_starts(targets, max_extents=most),
            modelled,
            lambda model: model.announce_log_starts(moves),
        )

    def _swap(self) -> Operation:
        """Compaction of what some partitions hold, or the same once more: its answer may have been lost."""
        if not self.swaps or self.rng.random() < 0.8:
            keys = self.rng.sample(self._live_keys(), self.rng.choice([1, 2, 3]))
            swaps = [swap for key in keys if (swap := self._merged(key)) is not None]
            size = sum(swap.length for swap in swaps)
            self.swaps.append((NewFile(new_file_id(time.time_ns() // 1_000_000, self.rng), 1, size, size), swaps))
        file, swaps = self.rng.choice(self.swaps[-2:])
        taking_over: list[Extent] = []

        async def modelled(model: ModelMetastore) -> list[SwapOutcome] | None:
            outcomes, taking_over[:] = model.decide_swaps(file.file_id, swaps)
            return outcomes

        return Operation(
            f"swap {swaps}",
            lambda: self.store.swap_extents(self.token, file, swaps),
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
            tuple(SwapInput(extent.last_offset, extent.file_id) for extent in inputs),
        )

    def _move_leader_epoch(self) -> Operation:
        """As whoever moves one has to: the partition's row, then its shard's lock, for a commit judges by it."""
        key = self.rng.choice(self._live_keys())
        epoch = self.model.partitions[key].leader_epoch + 1

        async def real() -> bool:
            async with session(self.url) as mover, mover.transaction():
                await rows(mover, "SELECT 1 FROM partitions WHERE partition_key = %s FOR NO KEY UPDATE", key)
                shard = commit_shard(key, self.store.commit_shards)
                await rows(mover, "SELECT lock_shards(ARRAY[%s]::smallint[])", shard)
                moved = "UPDATE partitions SET leader_epoch = %s WHERE partition_key = %s RETURNING 1"
                return bool(await rows(mover, moved, epoch, key))

        async def modelled(model: ModelMetastore) -> bool:
            if key not in model.partitions:
                return False
            model.set_leader_epoch(key, epoch)
            return True

        return Operation("move leader epoch", real, modelled)

    def _expire_producers(self) -> Operation:
        """Housekeeping looks for the silent first and takes their shards' locks then."""
        silent: list[tuple[int, int]] = []

        async def real() -> None:
            await expire_producer_state(self.store.pool, EVERYBODY_MS, 1_000)

        async def modelled(model: ModelMetastore) -> None:
            silent[:] = [(key, producer) for key, p in model.partitions.items() for producer in p.producers]

        def forget(model: ModelMetastore) -> None:
            for key, producer in silent:
                if key in model.partitions:
                    model.partitions[key].producers.pop(producer, None)

        return Operation("expire producers", real, modelled, forget)

    def _file(self) -> FileCommit:
        return file_of([self._batch() for _ in range(self.rng.choice([1, 2, 4]))])

    def _batch(self) -> StagedBatch:
        """In sequence as of the round's start, an earlier one again, or of no producer."""
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
    """Every order of the operations' steps; an operation that announces stands twice."""
    return iter(set(itertools.permutations(_steps(operations))))


def _steps(operations: list[Operation]) -> list[int]:
    return [i for i, op in enumerate(operations) for _ in range(1 if op.announced is None else 2)]


async def _told(model: ModelMetastore, operations: list[Operation], order: tuple[int, ...]) -> dict[int, Any]:
    """What each caller learns if their steps happen in this order."""
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


async def _run_gated(url: str, rng: random.Random, shards: int, busy: int, operations: list[Operation]) -> list[Any]:
    """Everybody's result or error, by operation. `busy`: the shard whose feed row may be held."""
    async with AsyncExitStack() as stack:
        watcher = await stack.enter_async_context(session(url))
        gate = await stack.enter_async_context(session(url))
        openings = [f"SELECT pg_advisory_unlock({COMMIT_LOCK_CLASS}, {shard})" for shard in range(shards)]
        for shard in range(shards):
            await gate.execute(f"SELECT pg_advisory_lock({COMMIT_LOCK_CLASS}, {shard})".encode())
        if rng.random() < 0.7:  # somebody's feed row waits too, in the middle of a commit
            row_gate = await stack.enter_async_context(session(url))
            await row_gate.execute("BEGIN")
            await rows(row_gate, "SELECT 1 FROM commit_shards WHERE shard = %s FOR UPDATE", busy)
            openings.append("COMMIT")
        rng.shuffle(openings)
        running: dict[int, asyncio.Task[Any]] = {}
        for index in rng.sample(range(len(operations)), len(operations)):
            running[index] = asyncio.create_task(operations[index].real())
            await _settled(watcher, list(running.values()))
        for opening in openings:
            await (row_gate if opening == "COMMIT" else gate).execute(opening.encode())
            await _settled(watcher, list(running.values()))
        await asyncio.wait(running.values())
        return [_outcome(running[index]) for index in range(len(operations))]


async def _settled(watcher: Session, tasks: list[asyncio.Task[Any]]) -> None:
    """Return when each task is done or waits for a lock; or soon, for one that a deadlock check holds up."""
    for _ in range(100):
        if (await rows(watcher, WAITING))[0][0] >= sum(not task.done() for task in tasks):
            return
        await asyncio.sleep(0.001)


def _outcome(task: asyncio.Task[Any]) -> Any:
    error = task.exception()
    if error is not None and not isinstance(error, HeadraceError | AssertionError):
        raise error
    return error or task.result()
