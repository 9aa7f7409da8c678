"""A bucket and a metastore that fail at random, from one seed, and clients that keep books.

Fault model, bucket: a put may be slow, fail without a trace, or be stored and lose its answer; never
torn, never stored under another key. Metastore: a call may be slow, fail before it did anything, lose
its question or its answer, or take effect seconds after the caller gave up; agents get fenced until
they register again; leader epochs rise; a sweeper condemns files that stay uncommitted for long.
Not modelled: lost or altered objects, a metastore that breaks its own contract.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headrace.metastore.api.commit import FileAnswer, FileCommit
from headrace.protocol.request import ClientConnection, CloseConnection
from headrace.storage.errors import InvalidError, OutcomeUnknownError, UnavailableError
from headrace.storage.file_id import born_ms
from headrace.storage.objects.store import ObjectInfo, StoreDecorator
from tests.agent.produce.produce_world import NODE_ID, Answer, ProduceWorld
from tests.storage.batches import plain_batch

TOPIC = "t"
POISON = "poison"
PARTITIONS = 3
UNKNOWN = "request_timed_out"
SWEEP_AGE_S = 12.0
"""Longer than any request waits, as in life."""


class UnreliableStore(StoreDecorator):
    def __init__(self, world: ProduceWorld, rng: random.Random, rate: float) -> None:
        super().__init__(world.bucket)
        self._world, self._rng, self.rate = world, rng, rate

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        rng = self._rng
        slow = 3.0 if rng.random() < self.rate else 0.15
        await self._world.clock.sleep(rng.expovariate(1 / slow))
        fate = rng.random()
        if fate < self.rate / 2:
            raise UnavailableError("injected: connection refused")
        stored = await self._inner.put(key, body, if_absent=if_absent)
        if fate < self.rate:
            raise OutcomeUnknownError("injected: answer lost")
        return stored


class UnreliableMetastore:
    """`late`: calls that take effect after their caller gave up."""

    def __init__(self, world: ProduceWorld, rng: random.Random, rate: float) -> None:
        self._world, self._rng, self.rate = world, rng, rate
        self.late: set[asyncio.Task[None]] = set()
        self.calls = 0

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        self.calls += 1
        rng, model = self._rng, self._world.model
        await self._world.clock.sleep(rng.expovariate(1 / 0.02))
        fate = rng.random() / self.rate if self.rate else 1.0
        if fate < 0.3:
            raise UnavailableError("injected: connection refused")
        if fate < 0.5:
            raise OutcomeUnknownError("injected: question lost")
        poison = self._world.view.head.topics_by_name[POISON].key(0)
        is_poisoned = any(batch.partition_key == poison for file in files for batch in file.batches)
        if fate < 0.7:
            if not is_poisoned:
                self._happen_late(node_id, broker_epoch, files)
            raise OutcomeUnknownError("injected: timed out")
        if fate < 0.8:
            model.fence_agent(NODE_ID)
        self._sweep(files)
        if is_poisoned:
            raise InvalidError("injected: violates a constraint")
        answers = await model.commit_files(node_id, broker_epoch, files)
        if 0.8 <= fate < 1.0:
            raise OutcomeUnknownError("injected: answer lost")
        return answers

    async def allocate_producer_ids(self, count: int) -> range:
        return await self._world.model.allocate_producer_ids(count)

    def register_again(self) -> None:
        """Do what the agent's membership does after an answer that it is fenced."""
        view = self._world.view
        if self._world.model.agents.get(NODE_ID) != view.broker_epoch:
            view.broker_epoch += 1
            self._world.model.register_agent(NODE_ID, view.broker_epoch)

    def _happen_late(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> None:
        async def happen() -> None:
            await self._world.clock.sleep(self._rng.uniform(0.0, 3.0))
            await self._world.model.commit_files(node_id, broker_epoch, files)

        task = asyncio.create_task(happen())
        self.late.add(task)
        task.add_done_callback(self.late.discard)

    def _sweep(self, files: Sequence[FileCommit]) -> None:
        now_ms = self._world.clock.wall_ms()
        for file in files:
            if now_ms - born_ms(file.file_id) > SWEEP_AGE_S * 1000 and self._rng.random() < 0.5:
                self._world.model.condemn(file.file_id)


@dataclass
class Sent:
    """One batch in a client's books. Times on the world's clock; `error` None while unanswered."""

    partition: int
    data: bytes
    sent_at: float
    alone: bool
    """The only batch of its request: its answer came as soon as it was known."""
    answered_at: float = 0.0
    error: str | None = None
    base_offset: int = -1


@dataclass
class PlainClient:
    """Sends without a producer id, many requests in flight, and never repeats anything."""

    world: ProduceWorld
    rng: random.Random
    name: str
    books: list[Sent] = field(default_factory=list)

    async def run(self, requests: int) -> None:
        connection = self.world.connect()
        in_flight = []
        for number in range(requests):
            await self.world.clock.sleep(self.rng.expovariate(1 / 0.05))
            partitions = self.rng.sample(range(PARTITIONS), self.rng.choice([1, 1, 1, 2, 3]))
            sent = [
                Sent(
                    partition,
                    plain_batch(self.rng.randint(1, 3), f"{self.name}-{number}".encode()),
                    self.world.clock.monotonic(),
                    alone=len(partitions) == 1,
                )
                for partition in partitions
            ]
            self.books += sent
            in_flight.append(asyncio.create_task(self._send(connection, sent)))
        await asyncio.gather(*in_flight)

    async def _send(self, connection: ClientConnection, sent: list[Sent]) -> None:
        answers = await self.world.produce(connection, {TOPIC: {s.partition: s.data for s in sent}}, timeout_ms=6000)
        assert answers is not None
        for entry in sent:
            await note(self.world, entry, answers[TOPIC, entry.partition])


@dataclass
class IdempotentClient:
    """A producer id and one partition; up to 5 batches in flight, repeated in order until all are acknowledged.

    When a batch fails it waits for the others in flight, as librdkafka does, and continues from the first that failed.
    """

    world: ProduceWorld
    rng: random.Random
    producer_id: int
    partition: int
    books: list[Sent] = field(default_factory=list)

    async def run(self, batches: int) -> None:
        sequence, backlog = 0, []
        for number in range(batches):
            count = self.rng.randint(1, 3)
            data = plain_batch(
                count,
                f"{self.producer_id}-{number}".encode(),
                producer_id=self.producer_id,
                producer_epoch=0,
                base_sequence=sequence,
            )
            sequence += count
            backlog.append(Sent(self.partition, data, 0.0, alone=True))
        self.books = list(backlog)
        connection = self.world.connect()
        while backlog:
            window = backlog[: self.rng.randint(1, 5)]
            if not await self._send_window(connection, window):
                connection = self.world.connect() if self.rng.random() < 0.5 else connection
                await self.world.clock.sleep(0.1)
            while backlog and backlog[0].error == "none":
                backlog.pop(0)

    async def _send_window(self, connection: ClientConnection, window: list[Sent]) -> bool:
        """Send what is not yet acknowledged, in order; whether all of it was."""
        in_flight = []
        for entry in window:
            await self.world.clock.sleep(self.rng.expovariate(1 / 0.03))
            if entry.error != "none":
                in_flight.append(asyncio.create_task(self._send(connection, entry)))
        await asyncio.gather(*in_flight)
        return all(entry.error == "none" for entry in window)

    async def _send(self, connection: ClientConnection, entry: Sent) -> None:
        try:
            answers = await self.world.produce(connection, {TOPIC: {entry.partition: entry.data}}, timeout_ms=3000)
        except CloseConnection:
            entry.error = UNKNOWN
            return
        assert answers is not None
        await note(self.world, entry, answers[TOPIC, entry.partition])


async def note(world: ProduceWorld, entry: Sent, answer: Answer) -> None:
    """Write an answer into the books; an acknowledgement is checked against what readers see at this very moment."""
    entry.error, entry.base_offset = answer.error, answer.base_offset
    entry.answered_at = world.clock.monotonic()
    if answer.error == "none":
        key = world.view.head.topics_by_name[TOPIC].key(entry.partition)
        assert key is not None
        log = {stored.base_offset: stored.data for stored in await world.log_of(key)}
        assert log.get(answer.base_offset) == entry.data, "acknowledged what readers do not see"


async def raise_leader_epochs(world: ProduceWorld, rng: random.Random, times: int) -> None:
    """A partition's leader epoch rises, and the agent learns of it a little later."""
    for _ in range(times):
        await world.clock.sleep(rng.uniform(0.2, 1.0))
        topic = world.view.head.topics_by_name[TOPIC]
        index = rng.randrange(PARTITIONS)
        epochs = tuple(epoch + (i == index) for i, epoch in enumerate(topic.leader_epochs))
        world.model.set_leader_epoch(topic.key(index) or 0, epochs[index])
        world.put_topic(replace(topic, leader_epochs=epochs))
        await world.clock.sleep(rng.uniform(0.0, 0.3))
        world.view.image = world.view.head
