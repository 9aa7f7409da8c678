"""One share schedule: a seed goes in, what happened and what was wrong comes out.

For some seconds things go wrong; then all is calm, and one careful consumer reads what is left. Checked (X12): no
record is acquired after a client heard that its acceptance was applied; none is acquired more often than the limit and
the changes of the owner allow; none is acquired from a client that has it, and none is sent after its lock has ended;
each one from the group's beginning on is acknowledged finally by a client, or its attempts are used up; and nothing is
stuck once all is calm.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from headrace.agent.groups.share.share_partition import Acquired
from headrace.protocol.request import ClientConnection, Request
from tests.simulation.loop import SpinningError, VirtualLoop
from tests.simulation.shares.agents import ATTEMPTS, BATCH_OFFSETS, Process, SimulatedAgent
from tests.simulation.shares.cluster import GROUP, KEYS, LATENCY, Log, Registry, new_store
from tests.simulation.shares.consumers import ShareConsumer
from tests.simulation.shares.transactions import Transactions

T = TypeVar("T")
AGENTS, CONSUMERS = 3, 3
TROUBLED_SECONDS, CALM_SECONDS = 8.0, 60.0
TIMEOUT_SECONDS, HASTY_SECONDS = 2.0, 0.25
LOCK_HOLDS_SECONDS, LOCK_ENDED_SECONDS = 0.9, 1.2
"""A lock of one second lasts at least and at most so long, by the clocks of owner and agent."""


class Attempt(NamedTuple):
    """A record was acquired at this time, from the owner with this epoch of its claim."""

    at: float
    epoch: int


class Hold(NamedTuple):
    """A client has a record for as long as this, unless it says or does something before."""

    name: str
    line: Line
    epoch: int
    until: float


@dataclass(frozen=True, slots=True)
class ShareResult:
    """`digest` represents the whole history: equal digests, equal histories."""

    seed: int
    problems: list[str]
    digest: str
    acquired: int
    changes: int
    kills: int


class Line:
    """A client's connection to one process."""

    def __init__(self, world: ShareWorld, process: Process | None, number: int) -> None:
        self._world, self._process = world, process
        self.connection = ClientConnection(number, f"client{number}:1")
        self._patience = random.Random(f"{world.seed} line {number}")
        self.is_closed = process is None
        if process is not None:
            process.agent.clients.append(self.connection)

    async def ask(self, api_key: int, version: int, entity: Any) -> Any:
        """The answer's entity; None if there is none, and then the connection is closed."""
        world, process = self._world, self._process
        await world.pause(LATENCY)
        if self.is_closed or process is None or process.agent.process is not process:
            self.close()
            return None
        connection = self.connection
        request = Request(connection, api_key, version, 0, "client", memoryview(b""), process.clock.monotonic(), entity)
        handler = process.handlers[api_key]
        work = world.begin(process, lambda: handler(request))
        if world.rng.random() < world.trouble(0.04):
            await asyncio.sleep(world.rng.uniform(0, 0.3))
            self.close()  # it hangs up
            return None
        is_hasty = self._patience.random() < world.trouble(0.5)
        await asyncio.wait([work], timeout=HASTY_SECONDS if is_hasty else TIMEOUT_SECONDS)
        await world.pause(LATENCY)
        if not work.done() or world.rng.random() < world.trouble(0.04):
            self.close()
            return None
        if (error := work.exception()) is not None:
            world.report(f"a request failed: {error!r}")
            return None
        return work.result().entity

    @property
    def is_open(self) -> bool:
        """Whether the client has not hung up, and the agent runs."""
        return not self.is_closed and self._process is not None and self._process.agent.process is self._process

    def close(self) -> None:
        """The agent learns of it a little later, if it still runs."""
        if not self.is_closed and self._process is not None:
            self._world.close_late(self._process, self.connection)
        self.is_closed = True


class ShareWorld:
    """Everything in a schedule knows it, and each other by it."""

    def __init__(self, seed: int, *, has_transactions: bool = False) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.loop = VirtualLoop(lambda message: self.report(f"not awaited: {message}"), self._no_dial)
        self.context = contextvars.Context()
        self.problems: list[str] = []
        self.history: list[tuple[object, ...]] = []
        self.registry = Registry(self)
        self.store = new_store(self.registry)
        self.logs = {key: Log() for key in KEYS}
        self.transactions = Transactions(self, KEYS[0]) if has_transactions else None
        self.agents = [SimulatedAgent(self, node_id) for node_id in range(1, AGENTS + 1)]
        self.is_troubled, self.is_calm = True, False
        self.finals_sent: set[tuple[int, int]] = set()
        self.done_at: dict[tuple[int, int], float] = {}
        """When a client heard that its final acknowledgement was applied."""
        self.tries: Counter[tuple[int, int]] = Counter()
        """How often each record was acquired."""
        self.delivered_to: Counter[tuple[int, int]] = Counter()
        self.changes_before: dict[tuple[int, int], int] = {}
        """Changes of the owner before a record was acquired for the first time."""
        self.attempts: dict[tuple[int, int, str, int], Attempt] = {}
        """(partition index, offset, member, number of the attempt) -> the newest of these."""
        self.holds: dict[tuple[int, int], Hold] = {}
        self.removed: set[int] = set()
        """Keys of partitions that are not there now."""
        self.first: dict[int, int] = {}
        self.kills = 0
        self._connections = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self) -> ShareResult:
        try:
            self.loop.run(self._main())
        except SpinningError as error:
            self.report(f"stuck: {error}")
        digest = hashlib.sha256(repr(self.history).encode()).hexdigest()
        changes = self.owner_changes()
        return ShareResult(self.seed, self.problems, digest, self.tries.total(), changes, self.kills)

    # -- what everything in the world uses

    def trouble(self, chance: float) -> float:
        """The chance of a fault now."""
        return chance if self.is_troubled else 0.0

    def note(self, *event: object) -> None:
        self.history.append((self.loop.time(), *event))

    def report(self, problem: str) -> None:
        self.problems.append(f"{problem} at={self.loop.time():.3f}")

    async def pause(self, seconds: tuple[float, float]) -> None:
        await asyncio.sleep(self.rng.uniform(*seconds))

    def later(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        self.loop.call_later(seconds, call, *args, context=self.context)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task outside of every process."""
        return self._kept(self.loop.create_task(work, context=self.context))

    def begin(self, process: Process, work: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
        """A task of a process."""

        async def run() -> Any:
            return await work()

        return self._kept(self.loop.create_task(run(), context=process.context))

    def _kept(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close_late(self, process: Process, connection: ClientConnection) -> None:
        """The process learns that a client is gone."""
        seconds = self.rng.uniform(0, 0.05)
        self.loop.call_later(seconds, _close, connection, context=process.context)

    def end_forwarded(self, process: Process, connection_id: int) -> None:
        """The link on which this client was named is lost."""
        for each in process.served:
            if each.connection_id == connection_id and not each.closed:
                self.close_late(process, each)

    def connect(self, rng: random.Random) -> Line:
        """To any agent."""
        self._connections += 1
        return Line(self, rng.choice(self.agents).process, self._connections)

    def to_coordinator(self, rng: random.Random) -> Line:
        """To the one that some agent takes for the coordinator."""
        asked = rng.choice(self.agents).process
        found = None if asked is None else asked.view.coordinator(GROUP)
        self._connections += 1
        return Line(self, None if found is None else self.agents[found.node_id - 1].process, self._connections)

    # -- what is checked

    def acquired(self, node_id: int, member_id: str, epoch: int, got: Mapping[int, Sequence[Acquired]]) -> None:
        """The owner, with this epoch of its claim, gave these to a member."""
        for key, ranges in got.items():
            index = KEYS.index(key)
            for each in ranges:
                self.first[index] = min(self.first.get(index, each.first), each.first)
                for offset in range(each.first, each.last + 1):
                    self._one_acquired(node_id, (index, offset), each.tries)
                    self._check_the_hold((index, offset), epoch)
                    self.attempts[index, offset, member_id, each.tries] = Attempt(self.loop.time(), epoch)

    def _check_the_hold(self, ref: tuple[int, int], epoch: int) -> None:
        hold = self.holds.pop(ref, None)
        if hold is not None and hold.epoch == epoch and self.loop.time() < hold.until and hold.line.is_open:
            self.report(f"acquired from a client that has it: {ref} until={hold.until:.3f}")

    def sent(self, member_id: str, index: int, ranges: Sequence[Any]) -> None:
        """An agent answers with acquired records."""
        for each in ranges:
            for offset in range(each.first_offset, each.last_offset + 1):
                if self.is_hole(KEYS[index], offset):
                    self.report(f"sent although there is no record: {(index, offset)}")
                attempt = self.attempts[index, offset, member_id, each.delivery_count]
                if self.loop.time() > attempt.at + LOCK_ENDED_SECONDS:
                    self.report(f"sent after its lock had ended: {(index, offset)} acquired={attempt.at:.3f}")

    def _one_acquired(self, node_id: int, ref: tuple[int, int], tries: int) -> None:
        self.note("acquired", node_id, ref, tries)
        self.tries[ref] += 1
        self.changes_before.setdefault(ref, self.owner_changes())
        if ref in self.done_at:
            self.report(
                f"delivered after its acceptance was answered: {ref} by={node_id} answered={self.done_at[ref]:.3f}"
            )
        if ref[1] >= self.readable_end(KEYS[ref[0]], self.loop.time()):
            self.report(f"acquired before it exists, or from an open transaction: {ref}")
        if tries > ATTEMPTS + self.owner_changes():
            self.report(f"too many attempts: {ref} tries={tries}")

    def answered(self, name: str, ref: tuple[int, int]) -> None:
        """A client heard that its final acknowledgement was applied."""
        self.note("answered", name, ref)
        self.done_at.setdefault(ref, self.loop.time())

    def delivered(self, name: str, line: Line, ref: tuple[int, int], tries: int, until: float) -> None:
        """A client has it. `until`: it is a member for at least so long."""
        self.note("delivered", name, *ref)
        attempt = self.attempts[(*ref, name, tries)]
        self.holds[ref] = Hold(name, line, attempt.epoch, min(attempt.at + LOCK_HOLDS_SECONDS, until))
        self.delivered_to[ref] += 1
        changes = self.owner_changes() - self.changes_before[ref]
        if self.delivered_to[ref] > ATTEMPTS + changes:
            self.report(f"too many deliveries: {ref} deliveries={self.delivered_to[ref]} changes={changes}")

    def given_up(self, name: str) -> None:
        """The client is about to end its session, or to leave."""
        self.holds = {ref: hold for ref, hold in self.holds.items() if hold.name != name}

    def is_hole(self, key: int, offset: int) -> bool:
        """Return whether the log has no record for the group there: it was removed, or its transaction aborted."""
        return self.is_removed(key, offset) or (
            self.transactions is not None and self.transactions.is_aborted(key, offset)
        )

    def is_removed(self, key: int, offset: int) -> bool:
        """Return whether cleaning removed it: it did so to each fourth batch of the first partition."""
        return key == KEYS[0] and offset // BATCH_OFFSETS % 4 == 3

    def readable_end(self, key: int, time: float) -> int:
        """Return the end of what the group might read at this time."""
        end = self.logs[key].end_at(time)
        return end if self.transactions is None else self.transactions.stable_end(key, end, time)

    def owner_changes(self) -> int:
        """Return how often the group was claimed, after the first time."""
        group = self.store.groups.get(GROUP)
        return 0 if group is None else group.epoch - 1

    def is_done(self) -> bool:
        """Return whether the group has come to the ends of the logs, as it is stored. Of a partition that came again
        and is empty nothing need be stored.
        """
        rows = self.store.shares[GROUP]
        starts = {key: rows[key].start_offset if key in rows else self.logs[key].start for key in KEYS}
        return all(start >= self.logs[key].end for key, start in starts.items())

    def _check_the_end(self) -> None:
        if not self.is_done():
            rows = {key: (row.start_offset, row.kept) for key, row in self.store.shares[GROUP].items()}
            self.report(f"records are stuck: stored={rows} ends={[log.end for log in self.logs.values()]}")
            return
        for index, key in enumerate(KEYS):
            log = self.logs[key]
            for offset in range(max(self.first.get(index, log.end), log.start), log.end):
                ref = index, offset
                if not self.is_hole(key, offset) and ref not in self.finals_sent and self.tries[ref] < ATTEMPTS:
                    self.report(f"lost: {ref} attempts={self.tries[ref]}")

    # -- the schedule

    async def _main(self) -> None:
        for agent in self.agents:
            agent.boot()
        await asyncio.sleep(0.3)
        nemesis, scaling, producing = map(self.spawn, (self._disturb(), self._scale(), self._produce()))
        transacting = None if self.transactions is None else self.spawn(self.transactions.run())
        consumers = [self.spawn(ShareConsumer(self, f"c{number}").run()) for number in range(CONSUMERS)]
        await asyncio.sleep(TROUBLED_SECONDS)
        nemesis.cancel()
        scaling.cancel()
        self.is_troubled, self.is_calm = False, True
        self.note("calm")
        await producing
        if transacting is not None:
            await transacting
        await asyncio.sleep(1.0)
        careful = self.spawn(ShareConsumer(self, "careful", is_careful=True).run())
        await asyncio.wait([*consumers, careful], timeout=CALM_SECONDS)
        self._check_the_end()

    async def _produce(self) -> None:
        while not self.is_calm:
            await asyncio.sleep(self.rng.expovariate(8))
            key, count = self.rng.choice(KEYS), self.rng.randint(1, 4)
            if key in self.removed:
                continue
            log = self.logs[key]
            log.ends.append((self.loop.time(), log.end + count))
            self.wake()

    def wake(self) -> None:
        """All processes hear a little later that there is more to read."""
        for agent in self.agents:
            if agent.process is not None:
                for waiter in list(agent.process.logs.waiters):
                    self.loop.call_later(0.05, waiter.hear, 1, context=agent.process.context)

    async def _disturb(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 1.2))
            agent = self.rng.choice(self.agents)
            what = self.rng.random()
            if what < 0.4:
                self.kills += 1
                agent.kill()
            elif what < 0.75:
                agent.freeze()
            elif what < 0.85:
                log = self.logs[self.rng.choice(KEYS)]
                log.start = self.rng.randint(log.start, max(log.start, log.end - 5))
                self.note("log start", log.start)

    async def _scale(self) -> None:
        """The second partition is emptied and removed, and comes again a little later."""
        rng, key = random.Random(f"{self.seed} scale"), KEYS[1]
        while True:
            await asyncio.sleep(rng.uniform(0.5, 3.0))
            log = self.logs[key]
            log.start = log.end
            self.store.delete_partitions([key])
            self.removed.add(key)
            self.note("removed", key, log.end)
            try:
                await asyncio.sleep(rng.uniform(0.3, 1.0))
            finally:
                self.store.deleted_keys.discard(key)
                self.removed.discard(key)
                self.note("again", key)

    async def _no_dial(self, protocol: Any, port: int) -> Any:
        raise ConnectionRefusedError


def _close(connection: ClientConnection) -> None:
    if not connection.closed:
        connection.closed = True
        if connection.when_closed is not None:
            connection.when_closed()


def simulate(seed: int, *, has_transactions: bool = False) -> ShareResult:
    """Run the seed's schedule, and judge it. `has_transactions`: the group reads committed records only."""
    return ShareWorld(seed, has_transactions=has_transactions).run()
