"""Producers and a group of headrace.client on one topic, and what happens to every record.

Place: under `make demo-growth` and tests/client/test_growth.py; the caller changes the count meanwhile.
Invariant: `events` has deliveries and callbacks of all members in the order in which they happened: all run in one
event loop. A key has one producer, so its records have one order.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

from headrace.client import ClientSettings, OrderedConsumer, OrderedProducer, PartitionKeyListener
from headrace.client.listeners import Partitions
from headrace.client.sending import StoredRecord
from headrace.storage.clock import Clock, SystemClock
from tests.growth.checks import Delivered, Event, KeyAssigned, MaybeRevoked

POLL_MS = 200


class _Callbacks(PartitionKeyListener):
    def __init__(self, member: str, events: list[Event]) -> None:
        self._member, self._events = member, events

    async def on_partition_key_maybe_revoked(self, partitions: Partitions) -> None:
        self._events += (MaybeRevoked(self._member, each) for each in sorted(partitions))

    async def on_partition_key_assigned(self, partitions: Partitions) -> None:
        self._events += (KeyAssigned(self._member, each) for each in sorted(partitions))


class OrderedRun:
    """Use it with `async with`: producers write until `finish`, members read until they have everything."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        producers: int,
        members: int,
        keys: int,
        rate: int,
        heartbeat_interval_ms: int,
        seed: int = 0,
        clock: Clock | None = None,
    ) -> None:
        """`keys`: of each producer. `rate`: records a second of each."""
        self._settings, self._topic = ClientSettings(bootstrap.split(",")), topic
        self._producers, self._members, self._keys, self._rate = producers, members, keys, rate
        self._interval_ms, self._seed, self._clock = heartbeat_interval_ms, seed, clock or SystemClock()
        self.events: list[Event] = []
        self.sent: Counter[bytes] = Counter()
        self.delivered: Counter[bytes] = Counter()
        self.by_partition: Counter[int] = Counter()
        self.consumers: list[OrderedConsumer] = []
        self._stored: list[asyncio.Future[StoredRecord]] = []
        self._is_writing = self._is_reading = True
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._produce(number)) for number in range(self._producers)]
        self._tasks += [asyncio.create_task(self._consume(f"member-{number}")) for number in range(self._members)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Return when it holds. What a producer or member raises is raised here."""
        while not reached():
            for task in self._tasks:
                if task.done() and task.exception() is not None:
                    task.result()
            await self._clock.sleep(0.05)

    async def until_all_go_on(self, more: int = 3) -> None:
        """Return when of each key `more` records were delivered that are sent from now on."""
        await self.until(lambda: len(self.sent) == self._producers * self._keys)
        before = dict(self.sent)
        await self.until(lambda: all(self.delivered[key] >= count + more for key, count in before.items()))

    async def finish(self) -> None:
        """No more records; return when all are stored and delivered."""
        self._is_writing = False
        await asyncio.gather(*self._tasks[: self._producers])
        await asyncio.gather(*self._stored)
        await self.until(lambda: self.delivered == self.sent)
        self._is_reading = False
        await asyncio.gather(*self._tasks)

    async def _produce(self, number: int) -> None:
        rng = random.Random(self._seed * 1_000 + number)
        keys = [b"%d-%d" % (number, key) for key in range(self._keys)]
        async with OrderedProducer(self._settings, rng=rng) as producer:
            while self._is_writing:
                for key in rng.sample(keys, len(keys)):
                    self.sent[key] += 1
                    self._stored.append(await producer.send(self._topic, b"%d" % self.sent[key], key))
                await self._clock.sleep(len(keys) / self._rate)

    async def _consume(self, member: str) -> None:
        consumer = OrderedConsumer(
            self._settings,
            "growth",
            heartbeat_interval_ms=self._interval_ms,
            rng=random.Random(f"{self._seed}{member}"),
        )
        consumer.subscribe([self._topic], partition_key_listener=_Callbacks(member, self.events))
        self.consumers.append(consumer)
        async with consumer:
            while self._is_reading:
                for record in await consumer.getmany(timeout_ms=POLL_MS):
                    assert record.key is not None
                    assert record.value is not None
                    self.events.append(
                        Delivered(member, (record.topic, record.partition), record.key, int(record.value))
                    )
                    self.delivered[record.key] += 1
                    self.by_partition[record.partition] += 1
