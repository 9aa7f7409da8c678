"""Two agents, their clients, and one pause: the first agent is stopped after one of its steps, for two sessions.

The schedule: an agent starts and becomes the active controller, clients come, the other agent joins, agent 1
gets the signal to stop at `leaves_at` (later if it was paused), clients finish with agent 2. `pause_after` names the
step of agent 1 after which it is stopped; without one, a run reports where its tasks wait after each step.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
from collections.abc import Coroutine
from typing import Any

from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.api.cluster import StoredSnapshot
from headrace.metastore.log.delegation_tokens import TokenTimes, issue_token
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.metastore.log.records import change_records
from headrace.metastore.log.replay import apply
from headrace.metastore.log.snapshot import encode_snapshot
from headrace.metastore.partitions.changes import change_count
from headrace.protocol.request import ClientConnection
from headrace.storage.file_id import object_key
from headrace.storage.records.header import read_header
from tests.pauses.clients import GROUP, OTHER_GROUP, Member, Producer
from tests.pauses.consumer_member import ConsumerMember, Positions
from tests.pauses.loop import PausingLoop
from tests.pauses.neighbours import dial
from tests.pauses.process import Process
from tests.pauses.reader import Reader
from tests.pauses.servers import SESSION_MS, Servers
from tests.pauses.sites import Site, standing
from tests.simulation.clocks import SimulatedClock
from tests.simulation.metadata import Topic

TARGET = 1
SHARDS = 4
TOPIC = "orders"
PAUSE_SECONDS = 2.2 * SESSION_MS / 1000
SECOND_AFTER = 0.5
BATCHES = 14
OVER_AFTER = 60.0


class World:
    """`run` it once; then ask what went wrong."""

    def __init__(
        self,
        pause_after: int | None = None,
        *,
        order: tuple[int, int] = (1, 2),
        leaves_at: float = 2.0,
        forwards: bool = False,
    ) -> None:
        """`forwards`: agents have one address, so each passes on what the other one must answer."""
        self.forwards = forwards
        self.problems: list[str] = []
        self.loop = PausingLoop(self.problems.append, self._after_step, functools.partial(dial, self))
        self.clock = SimulatedClock(self.loop)
        self.servers = Servers(self.clock, SHARDS)
        self.processes: list[Process] = []
        self.requests: set[asyncio.Task[Any]] = set()
        self.steps = 0
        """Of agent 1, so far."""
        self.sites: dict[int, set[Site]] = {}
        """Step -> where agent 1's tasks waited after it; only when nothing is paused."""
        self.paused_at: set[Site] = set()
        self.is_over = False
        self._pause_after = pause_after
        self._order = order
        self._leaves_at = leaves_at
        self._numbers = itertools.count(1)
        self._context = contextvars.Context()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._producers: list[Producer] = []
        self._members: list[Member | ConsumerMember] = []
        self._readers: list[Reader] = []

    def run(self) -> World:
        """The whole schedule."""
        self.loop.run(self._main())
        return self

    def next_number(self) -> int:
        return next(self._numbers)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Outside of every process."""
        task: asyncio.Task[Any] = self.loop.create_task(work, context=self._context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def another(self, process: Process) -> Process:
        """The next agent, if there is one by now."""
        return self.processes[(self.processes.index(process) + 1) % len(self.processes)]

    def answered_as_coordinator(self, process: Process, group: str) -> None:
        """A member got the answer to continue: no other agent may hold its group. If agents forward, another agent
        answered, some time ago."""
        if self.forwards:
            return
        held = self.servers.groups.groups[group].holder
        if held != (process.node_id, process.cluster.broker_epoch):
            self.problems.append(
                f"two coordinators: answered={process.node_id} holder={held} at={self.loop.time():.3f}"
            )

    # -- the schedule

    async def _main(self) -> None:
        orders = self._create_topic(TOPIC, 2)
        self._give_the_controller_work()
        first = self._boot(self._order[0])
        await self._until(lambda: first.is_serving, "the first agent serves")
        clients = self._send_clients(orders)
        await asyncio.sleep(SECOND_AFTER)
        second = self._boot(self._order[1])
        await self._until(lambda: second.is_serving, "the second agent serves")
        target, survivor = (first, second) if first.node_id == TARGET else (second, first)
        await asyncio.sleep(max(0.0, self._leaves_at - self.loop.time()))
        self.loop.create_task(target.stop(), context=target.context)
        producing = clients[: len(self._producers)]
        await self._until(lambda: target.is_stopped and all(task.done() for task in producing), "all came to an end")
        counts = [member.committed for member in self._members]
        await self._until(
            lambda: all(m.committed > n + 1 for m, n in zip(self._members, counts, strict=True)), "members go on"
        )
        await self._until(
            lambda: all(reader.knows(self._acknowledged(reader)) for reader in self._readers), "consumers read all"
        )
        self.is_over = True
        await asyncio.gather(*clients)
        log = self.servers.cluster.log
        await self._until(lambda: survivor.cluster.image.offset == len(log), "the survivor knows the whole log")
        self._judge(survivor)

    def _give_the_controller_work(self) -> None:
        """A log with a snapshot, a token that expires while an agent is paused, and a marked partition to remove."""
        log = self.servers.cluster
        times = TokenTimes(max_lifetime_ms=1_000, expiry_ms=1_000)
        log.append(
            FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=2),
            issue_token("t", "User:ann", (), max_lifetime_ms=-1, times=times, now_ms=self.clock.wall_ms()),
        )
        shrunk = log.add_topic("shrunk", 1)
        for count in (2, 1):
            topic = log.image.topics_by_id[shrunk].ordered_partitions
            change = change_count(topic, count)
            assert change is not None
            log.append(*change_records(shrunk, topic.initial, change))
        log.empty_partitions.add((shrunk, 1))
        image = apply(MetadataImage(), log.log)
        log.snapshots.append(StoredSnapshot(image.offset, encode_snapshot(image)))

    def _send_clients(self, orders: Topic) -> list[asyncio.Task[Any]]:
        shared: dict[int, ClientConnection] = {}
        places = [(place, dict[int, ClientConnection]()) for place in orders.places()]
        places += [(place, shared) for place in self._create_topic("unheard-of", 2).places()]
        self._producers = [Producer(self, place, n, BATCHES, to) for n, (place, to) in enumerate(places)]
        positions = Positions()
        self._members = [
            *(Member(self, GROUP, TOPIC, index, is_visitor=index > 0) for index in (0, 1)),
            *([Member(self, OTHER_GROUP, TOPIC, 0, is_visitor=False)] if self.forwards else []),
            *(ConsumerMember(self, orders, positions, f"m{i}", is_visitor=i > 0) for i in (0, 1)),
        ]
        self._readers = [Reader(self, place, rereads=place.index > 0) for place, to in places if to is not shared]
        return [self.spawn(client.run()) for client in (*self._producers, *self._members, *self._readers)]

    def _create_topic(self, name: str, partitions: int) -> Topic:
        """Agents learn of it when they catch up with the log."""
        number = len(self.servers.cluster.log)
        topic_id = self.servers.cluster.add_topic(name, partitions)
        self.servers.model.create_topic(number, partitions)
        return Topic(name, topic_id, number, partitions, is_mortal=False, stamps=False)

    def _boot(self, node_id: int) -> Process:
        context = contextvars.Context()
        process = context.run(Process, self, node_id)
        self.processes.append(process)
        self.loop.create_task(process.start(), context=process.context)
        return process

    async def _until(self, is_so: Any, what: str) -> None:
        while not is_so():
            if self.loop.time() > OVER_AFTER:
                raise AssertionError(f"never came true: {what}")
            await asyncio.sleep(0.02)

    def _after_step(self, owner: int) -> None:
        active = [p for p in self.processes if p.controller.is_active and not self.loop.is_frozen(p.node_id)]
        if len(active) > 1:
            self.problems.append(f"two active controllers: at={self.loop.time():.3f}")
        if owner != TARGET:
            return
        self.steps += 1
        if self._pause_after is None:
            self.sites[self.steps] = self._standing()
        if self.steps == self._pause_after:
            self.paused_at = self._standing()
            self.loop.freeze(TARGET)
            self.loop.call_later(PAUSE_SECONDS, self._resume, context=self._context)

    def _resume(self) -> None:
        """The pause was so long that the feed has no rows of it any more."""
        for shard in range(SHARDS):
            self.servers.model.forget_feed(shard)
        self.loop.thaw(TARGET)

    def _standing(self) -> set[Site]:
        return standing(self.loop.tasks_of(TARGET))

    # -- the verdict

    def _acknowledged(self, reader: Reader) -> list[tuple[int, int]]:
        """(producer id, sequence) of the batches in the reader's partition, in order."""
        return [
            (producer.producer_id, sequence)
            for producer in self._producers
            if producer.place == reader.place
            for sequence in sorted(producer.acknowledged)
        ]

    def _judge(self, survivor: Process) -> None:
        for producer in self._producers:
            stored = self._stored(producer)
            if producer.refused or [sequence for sequence, _ in stored] != list(range(BATCHES)):
                self.problems.append(f"stored={stored} refused={producer.refused}")
            if dict(stored) != producer.acknowledged:
                self.problems.append(f"acknowledged={producer.acknowledged} stored={stored}")
        image = survivor.cluster.image
        if image.delegation_tokens:
            self.problems.append("an expired token is still there")
        if set(image.agents) != {survivor.node_id} or not survivor.membership.holds_lease():
            self.problems.append(f"registrations={self.servers.cluster.agents}")

    def _stored(self, producer: Producer) -> list[tuple[int, int]]:
        """(sequence, offset) of the producer's batches in the log, in its order."""
        found = []
        for extent in self.servers.model.partitions[producer.place.key].extents:
            body = self.servers.bucket._objects[object_key(extent.source)].body
            at, offset = extent.position, extent.base_offset
            while at < extent.position + extent.length:
                header = read_header(body, at)
                if header.producer_id == producer.producer_id:
                    found.append((header.base_sequence, offset))
                at += 12 + header.batch_length
                offset += header.record_count
        return found
