"""One schedule: a seed goes in, what happened and what was wrong comes out.

A schedule has two parts. At first things go wrong as its plan says. Then all is calm: agents come
back, producers finish, what is still under way arrives, the sweeper runs over everything, and each
agent must serve the whole log. After that the checker judges the history.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.agent.produce.refused_sequences import ELSEWHERE_SECONDS
from headrace.metastore.inline_store import InlineStore
from tests.nouns import nouns
from tests.simulation.agents import Process, SimulatedAgent
from tests.simulation.alarm import alarm
from tests.simulation.bucket import Bucket
from tests.simulation.check import find_problems
from tests.simulation.check_flushes import Flush
from tests.simulation.cleaner import SimulatedCleaner
from tests.simulation.clocks import CLOCK_RATES, EPOCH_MS, SimulatedClock
from tests.simulation.compactor import SimulatedCompactor
from tests.simulation.consumers import Consumer, OffsetAsker, Reader
from tests.simulation.database import Database
from tests.simulation.failovers import Failovers
from tests.simulation.faults import Faults
from tests.simulation.full_following import FullFollowing
from tests.simulation.idempotent_producer import IdempotentProducer
from tests.simulation.keyed import KeyedLog
from tests.simulation.keyed_clients import KeyedProducer, KeyedReader
from tests.simulation.lane import Style
from tests.simulation.loop import SpinningError, VirtualLoop
from tests.simulation.messages import Batch, Messages
from tests.simulation.metadata import Metadata, Place
from tests.simulation.metastore_line import InlineNow
from tests.simulation.mover import SimulatedMover
from tests.simulation.neighbours import dial
from tests.simulation.nemesis import Nemesis
from tests.simulation.network import SimulatedConnection
from tests.simulation.plain_producers import FORGETFUL, PlainProducer
from tests.simulation.plan import Plan
from tests.simulation.problems import Kind, Problem
from tests.simulation.produce_call import Sent
from tests.simulation.reading import Listing, Poll
from tests.simulation.result import Result
from tests.simulation.seeds import make_plan
from tests.simulation.segment_workers import SegmentWorkers
from tests.simulation.sweeper import Sweeper

CALM_SECONDS_MAX = 60.0
"""After the last fault, all clients must finish within this time."""
GAP_SECONDS_MAX = ELSEWHERE_SECONDS / CLOCK_RATES[0] + 5.0
"""An agent's wait at a gap by the slowest clock, and what clients need after it."""
FINAL_POLLS_MAX = 40
LOOK_SECONDS = 0.1


def simulate(seed: int) -> Result:
    """Run the seed's schedule, and judge it."""
    return World(make_plan(seed)).run()


class World:
    """Everything in a schedule knows it, and each other by it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        rng = random.Random(plan.seed)
        self.agent_rng, self.network_rng, self.client_rng, self.nemesis_rng = (
            random.Random(rng.getrandbits(64)) for _ in range(4)
        )
        self.loop = VirtualLoop(self._unawaited, lambda protocol, port: dial(self, protocol, port))
        self.clock = SimulatedClock(self.loop)
        self.faults = Faults(plan.rates, random.Random(rng.getrandbits(64)))
        self.problems: list[Problem] = []
        self.history: list[tuple[object, ...]] = []
        self.messages = Messages()
        self.bucket = Bucket(self)
        self.database = Database(self, plan.shards)
        """The server that is the metastore now."""
        self.stored = InlineStore(self.bucket.objects, nouns(InlineNow(self)).inline)
        """Every file's bytes, wherever they are now."""
        self.past: list[Database] = []
        """Those that were, oldest first."""
        self.lives_begun: list[tuple[float, Database]] = []
        """When, and on which server."""
        self.lives_heard: defaultdict[int, list[float]] = defaultdict(list)
        """By process, when it heard that a life had begun, after its first."""
        self.sweeper = Sweeper(self)
        self.compactor = SimulatedCompactor(self)
        self.keyed = KeyedLog(self)
        self.cleaner = SimulatedCleaner(self)
        self.workers = SegmentWorkers(self) if plan.has_segments else None
        self.mover_rng = random.Random(plan.seed + 2)
        self.mover = SimulatedMover(self) if plan.inline is not None else None
        self.agents = [SimulatedAgent(self, node_id) for node_id in range(1, plan.agents + 1)]
        self.polls: list[Poll] = []
        self.listings: list[Listing] = []
        self.neighbour_answers = 0
        self.followers: list[FullFollowing] = []
        """Of all processes, where lists are compared."""
        self.kills: list[tuple[float, int]] = []
        """When, and which agent."""
        self.losses_listed = 0
        self.flushes: dict[int, list[Flush]] = {}
        """By process, in order."""
        self.repeatable: list[Sent] = []
        """Requests of idempotent producers: they may be delivered twice."""
        self.producer_ids: list[int] = []
        self.epoch_bumps = 0
        """Of producers as librdkafka."""
        self.first_sequences: dict[tuple[int, int], tuple[int, int]] = {}
        """(producer id, partition key) -> its first epoch there, and the sequence that it began with."""
        self.nemesis = Nemesis(self)
        self.is_calm = False
        self.is_final = False
        self._busy_until = 0.0
        self._connections = 0
        self.context = contextvars.Context()
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self) -> Result:
        with alarm(self.report):
            try:
                self.loop.run(self._main())
            except SpinningError as error:
                self.report(Kind.STUCK, str(error))
            else:
                self.problems += find_problems(self)
        return Result(
            seed=self.plan.seed,
            problems=self.problems,
            digest=hashlib.sha256(repr(self.history).encode()).hexdigest(),
            faults=self.faults.tally,
            attempts_per_batch=[len(batch.attempts) for batch in self.messages.batches],
            polls=len(self.polls),
            epoch_bumps=self.epoch_bumps,
            neighbour_answers=self.neighbour_answers,
            losses_listed=self.losses_listed,
            steps=self.loop.steps,
            virtual_seconds=self.loop.time(),
        )

    # -- what everything in the world uses

    @property
    def metadata(self) -> Metadata:
        return self.database.metadata

    def note(self, *event: object) -> None:
        """Write down what happened, and when."""
        self.history.append((self.loop.time(), *event))

    def report(self, kind: Kind, detail: str) -> None:
        """Something is wrong."""
        self.problems.append(Problem(kind, f"{detail} at={self.loop.time():.4f}"))

    def later(self, seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call back outside of every process."""
        return self.loop.call_later(seconds, callback, *args, context=self.context)

    def happens_late(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """The same, and the schedule does not end before."""
        self.stay_until(self.loop.time() + seconds)
        self.later(seconds, callback, *args)

    def stay_until(self, time: float) -> None:
        """The schedule does not end before."""
        self._busy_until = max(self._busy_until, time)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task outside of every process."""
        task: asyncio.Task[None] = self.loop.create_task(work, context=self.context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections

    def connect(self, rng: random.Random) -> SimulatedConnection:
        """Connect to any agent; closed at once when that one is down."""
        return SimulatedConnection(self, rng.choice(self.agents).process)

    def create_batch(self, producer: str, place: Place, rng: random.Random, *, is_idempotent: bool) -> Batch:
        timestamp = EPOCH_MS + int(self.loop.time() * 1000) + rng.randint(-50, 50)
        return self.messages.create(producer, place, rng.choice((1, 1, 2, 4)), timestamp, is_idempotent=is_idempotent)

    def heir_of(self, place: Place) -> Place | None:
        """The same partition of the topic's next incarnation, if there is one."""
        for topic in self.metadata.living():
            if topic.name == place.topic.name:
                return Place(topic, place.index)
        return None

    def end_of(self, place: Place) -> int:
        """The partition's high watermark; 0 once it is deleted."""
        partition = self.database.model.partitions.get(place.key)
        return partition.high_watermark if partition else 0

    def log_start_of(self, place: Place) -> int:
        """The partition's log start, or its last one once it is deleted."""
        return self.database.log_starts[place.key].at(self.loop.time())

    # -- the schedule

    async def _main(self) -> None:
        plan, rng = self.plan, self.client_rng
        stable = self.metadata.create_topic("stable", 2)
        stamped = self.metadata.create_topic("stamped", 1, stamps=True)
        mortal = self.metadata.create_topic("mortal", 1, is_mortal=True)
        for agent in self.agents:
            agent.boot()
        nemesis = self.nemesis
        nemesis.start()
        Failovers(self, nemesis).start()
        places = [*stable.places(), *stamped.places()]
        producers: list[IdempotentProducer | PlainProducer] = []
        for style, count in ((Style.PATIENT, plan.patient_producers), (Style.JAVA, plan.java_producers)):
            for number in range(count):
                mine = rng.sample([*places, *mortal.places()], rng.randint(1, 3))
                name = f"{style.name.lower()}-{number}"
                producers.append(IdempotentProducer(self, name, mine, style, plan.batches * len(mine) // 2 + 2))
        windows = (
            (1, plan.careful_producers),
            (rng.randint(3, 6), plan.pipelined_producers),
            (FORGETFUL, plan.forgetful_producers),
        )
        for window, count in windows:
            for number in range(count):
                name = f"plain-{window}-{number}"
                # mostly the same partition, so that small batches of several producers meet and are merged
                place = places[0] if rng.random() < 0.6 else rng.choice(places)
                producers.append(PlainProducer(self, name, place, window, plan.batches))
        consumers: list[Consumer | KeyedReader] = [
            Consumer(self, f"consumer-{number}") for number in range(plan.consumers)
        ]
        if plan.keyed_producers:
            keyed = self.metadata.create_topic("keyed", 2, is_compacted=True).places()
            self.keyed.hold(keyed)
            producers += [
                KeyedProducer(self, f"keyed-{number}", rng.choice(keyed), plan.batches * 3)
                for number in range(plan.keyed_producers)
            ]
            consumers += [KeyedReader(self, f"keyed-reader-{number}", rng) for number in range(plan.keyed_readers)]
            self.spawn(self.cleaner.run())
        self._start_workers()
        producing = [self.spawn(producer.run()) for producer in producers]
        consuming = [self.spawn(consumer.run()) for consumer in consumers]
        for number in range(plan.askers):
            self.spawn(OffsetAsker(self, f"asker-{number}").run())

        if plan.moves:
            await asyncio.wait(producing, timeout=plan.seconds)
        else:
            await asyncio.sleep(plan.seconds)
        self._calm_down()
        await self._finish(producing, producers)
        await self.wait_for_the_late()
        await self._drain()
        await self.wait_for_the_late()
        await self._await_the_life()
        await self.cleaner.settle()
        await self.wait_for_the_late()
        await self._settle_workers()
        self.is_final = True
        await self._see_the_end(consuming, consumers)
        self.sweeper.sweep_all()
        for agent in self.agents:
            await self._read_everything(agent)

    def _start_workers(self) -> None:
        if self.workers:
            self.spawn(self.workers.run())
        if self.mover:
            self.spawn(self.mover.run())

    async def _settle_workers(self) -> None:
        if self.workers:
            await self.workers.settle()
        if self.mover:
            await self.mover.settle()

    def _calm_down(self) -> None:
        self.note("calm")
        self.is_calm = True
        self.faults.calm()
        for agent in self.agents:
            agent.thaw(agent.process)

    async def _finish(
        self, producing: list[asyncio.Task[None]], producers: list[IdempotentProducer | PlainProducer]
    ) -> None:
        """Let producers end. Each agent may wait at a gap once more in the calm (decision 82)."""
        if not producing:
            return
        for limit in (CALM_SECONDS_MAX, *[GAP_SECONDS_MAX] * len(self.agents)):
            if not (await asyncio.wait(producing, timeout=limit))[1]:
                return
            if not any(agent.process and agent.process.waits_at_a_gap() for agent in self.agents):
                break
        left = [str(batch) for producer in producers for batch in producer.unresolved()]
        self.report(Kind.STUCK, f"producers do not come to an end: {left}")

    async def wait_for_the_late(self) -> None:
        """Messages under way arrive, even without a receiver."""
        await asyncio.sleep(max(self._busy_until - self.loop.time(), 0.0))

    async def _drain(self) -> None:
        """Every file that an agent holds gets a definite answer."""
        for agent in self.agents:
            process = await self._back_in_service(agent)
            if process is None:
                self.report(Kind.STUCK, f"agent {agent.node_id} does not come back")
                continue
            draining = self.loop.create_task(process.drain(), context=process.context)
            if (await asyncio.wait([draining], timeout=CALM_SECONDS_MAX))[1]:
                self.report(Kind.STUCK, f"agent {agent.node_id} does not drain")
            if process.produce.stopped:
                self.report(Kind.CRASHED, f"write path of agent {agent.node_id}: {process.produce.stopped}")

    async def _await_the_life(self) -> None:
        """Every agent learns of the life that the metastore is in. Until then it may show the one before, for as
        long as it keeps connections to an old server (metastore/life/keeper.py).
        """
        if not self.plan.failovers:
            return
        for _ in range(int(CALM_SECONDS_MAX / LOOK_SECONDS)):
            if all(self._is_in_the_life(agent) for agent in self.agents):
                return
            await asyncio.sleep(LOOK_SECONDS)
        self.report(Kind.STUCK, f"an agent does not hear of life {self.database.model.life}")

    def _is_in_the_life(self, agent: SimulatedAgent) -> bool:
        server = self.database
        has_begun = server.timeline == server.begun_timeline
        return has_begun and agent.process is not None and agent.process.metastore.named_life == server.model.life

    async def _back_in_service(self, agent: SimulatedAgent) -> Process | None:
        """Its process, once that is neither stopping nor starting."""
        for _ in range(int(CALM_SECONDS_MAX / LOOK_SECONDS)):
            if agent.process is not None and agent.process.serving.is_set():
                return agent.process
            await asyncio.sleep(LOOK_SECONDS)
        return None

    async def _see_the_end(self, consuming: list[asyncio.Task[None]], consumers: list[Consumer | KeyedReader]) -> None:
        if consuming and (await asyncio.wait(consuming, timeout=CALM_SECONDS_MAX))[1]:
            for consumer in consumers:
                for place, at in consumer.lagging().items():
                    self.report(Kind.UNSEEN, f"{consumer.name} is at {place}:{at} of {self.end_of(place)}")

    async def _read_everything(self, agent: SimulatedAgent) -> None:
        """Each agent alone must serve the whole log."""
        reader = Reader(self, f"final-{agent.node_id}", self.client_rng, by_id=True)
        connection = SimulatedConnection(self, agent.process)
        keyed = KeyedReader(self, reader.name, self.client_rng) if self.keyed.places else None
        for place in self.keyed.places:
            assert keyed
            await keyed.read_all(connection, place)
        for place in [p for topic in self.metadata.living() if not topic.is_compacted for p in topic.places()]:
            reader.positions = {place: self.log_start_of(place)}
            for _ in range(FINAL_POLLS_MAX):
                if reader.positions[place] >= self.end_of(place):
                    break
                await reader.poll(connection, [place], max_wait_ms=200)
            else:
                at, end = reader.positions[place], self.end_of(place)
                self.report(Kind.UNSEEN, f"{reader.name} is at {place}:{at} of {end}")

    def _unawaited(self, message: str) -> None:
        self.report(Kind.CRASHED, message)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(Kind.CRASHED, f"{task.get_coro()}: {error!r}")
