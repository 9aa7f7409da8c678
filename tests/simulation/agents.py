"""Agents as processes: the real write and read path, composed as agent/serve/paths.py does, without sockets.

Fault model: a process is killed between any two steps (its memory is gone, what it had sent still
arrives) and restarted; it is paused, perhaps so long that it is fenced, and continues as if nothing
happened; it gets the signal to stop, and drains; its clock runs at its own rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.cluster.zone import ZoneTraffic
from headrace.agent.fetch.index.shard_interest import FOLLOW_POLICY
from headrace.agent.fetch.service import FetchService, FetchSurroundings
from headrace.agent.listener.host import ProduceBytes
from headrace.agent.peers.channel import ZONE_CACHE_KEY
from headrace.agent.produce.callbacks import Callbacks
from headrace.agent.produce.files import FileTrace
from headrace.agent.produce.pipeline import ProducePipeline
from headrace.agent.produce.refused_sequences import ELSEWHERE_SECONDS
from headrace.agent.transactions.producer_ids import ProducerIds
from headrace.agent.transactions.producer_requests import InitProducerId
from headrace.metastore.inline_store import InlineStore
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.verdict import LifeVerdict
from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.hedging import HedgedStore, HedgePolicy
from headrace.storage.objects.merging import MergingStore
from headrace.storage.objects.retrying import RetryingStore
from headrace.storage.objects.store import ObjectStore
from load.contexts import a_context
from tests.nouns import nouns
from tests.simulation.bucket import BucketLine
from tests.simulation.check_flushes import Flush
from tests.simulation.clocks import CLOCK_RATES, SimulatedClock
from tests.simulation.faults import Fault
from tests.simulation.full_following import FullFollowing
from tests.simulation.loop import OWNER
from tests.simulation.metadata import SimulatedView
from tests.simulation.metastore_line import MetastoreLine
from tests.simulation.neighbours import NeighbourConnection
from tests.simulation.network import SimulatedConnection

if TYPE_CHECKING:
    from tests.simulation.world import World

RESTART_SECONDS = (0.05, 0.8)
PAUSE_SECONDS = (0.1, 1.5)
GRACE_SECONDS = 0.6
RETRY_SECONDS = 0.1
HEARTBEAT_SECONDS = (0.05, 0.4)
LIFE_CHECK_SECONDS = 0.2
ZONE_SECRET = b"of this cluster"
FENCED_AFTER_SECONDS = 0.7
"""Who is silent for so long has lost its lease."""
HEDGE_SAMPLES = 3
"""A schedule has too few PUTs for the real number."""


class _Unregistered(CollectorRegistry):
    """Each run of an agent has separate metrics, which are not collected."""

    def register(self, collector: Collector) -> None:
        pass


TRANSACTION_TIMEOUT_MAX_MS = 900_000


class _BudgetShortAtTimes:
    """The listener's memory of requests, for which one waits at times."""

    def __init__(self, is_short: Callable[[], bool]) -> None:
        self._is_short = is_short

    @property
    def waiting(self) -> int:
        return int(self._is_short())


class Process:
    """One life of an agent."""

    def __init__(self, world: World, agent: SimulatedAgent, owner: int) -> None:
        rng = random.Random(world.agent_rng.getrandbits(64))
        plan = world.plan
        self.agent = agent
        self.owner = owner
        self.context = contextvars.copy_context()
        self.context.run(OWNER.set, owner)
        self.clock = SimulatedClock(
            world.loop, rate=rng.uniform(*CLOCK_RATES), start=rng.uniform(0, 1e4), wall_skew_ms=rng.randint(-5000, 5000)
        )
        self.connections: dict[SimulatedConnection | NeighbourConnection, None] = {}
        self.in_progress: Counter[int] = Counter()
        """Requests without an answer, by API key."""
        self.serving = asyncio.Event()
        self._world = world
        self._probes = random.Random(plan.seed ^ owner)
        self._is_joining = False
        self.metastore = self._metastore = MetastoreLine(world, self, rng)
        self.view = SimulatedView(self._metastore, world.database.model.shards, agent.node_id)
        store = InlineStore(self._dressed(BucketLine(world, self, rng), rng), nouns(self._metastore).inline)
        self._keeper = LifeKeeper(nouns(self._metastore).life, store, self.clock, rng)
        context = a_context(  # transactions are not simulated here
            nouns(self._metastore), self.clock, store=store, settings=plan.settings, rng=rng, registry=_Unregistered()
        )
        around = FetchSurroundings(
            on_metadata_moved=self._catch_up_soon,
            zone_secret=ZONE_SECRET,
            traffic=ZoneTraffic(plan.settings.broker_rack, context.registry),
            follow=plan.follows[agent.node_id - 1] if plan.follows else FOLLOW_POLICY,
        )
        self.fetch = FetchService(context, self.view, around)
        self.full = self._metastore.full = self._follow_all() if plan.compares_lists else None
        self.produce = ProducePipeline(
            context,
            self.view,
            Callbacks(
                database_now_ms=self.fetch.database_now_ms,
                on_flushed=self.fetch.on_flushed,
                committing=self.fetch.committing,
                on_committed=self.fetch.on_committed,
                on_fenced=self.join_soon,
                on_closed=self._note_flush,
                reaches_bucket=self._reaches_bucket,
            ),
            self._seen_bytes(),
            authorizer=None,
        )
        self.dispatcher = Dispatcher()
        self.dispatcher.register(ApiKey.PRODUCE, self.produce.handle)
        self.dispatcher.register(ApiKey.FETCH, self.fetch.handle_fetch)
        if self.fetch.zone_cache is not None:
            self.dispatcher.register_unadvertised(ZONE_CACHE_KEY, self.fetch.zone_cache.handle)
        self.dispatcher.register(ApiKey.LIST_OFFSETS, self.fetch.handle_list_offsets)
        self.dispatcher.register(
            ApiKey.INIT_PRODUCER_ID,
            InitProducerId(
                ProducerIds(nouns(self._metastore).commits, self.clock),
                self.view,
                nouns(self._metastore).transactions,  # asked for ids only
                lambda: TRANSACTION_TIMEOUT_MAX_MS,
            ),
        )

    def _follow_all(self) -> FullFollowing:
        """What full following would do is noted next to this process."""
        full = FullFollowing(self.agent.node_id, self._world.database.model.shards)
        full.watch(self.fetch)
        self._world.followers.append(full)
        return full

    def _seen_bytes(self) -> ProduceBytes:
        """The same as a listener's, for which memory is short at times."""
        seen = ProduceBytes()
        if self._world.plan.memory_is_short:
            seen.budget = _BudgetShortAtTimes(self._is_memory_short)  # type: ignore[assignment]
        return seen

    def _reaches_bucket(self) -> bool:
        """Say what the last probe of the bucket saw, which is asked at each look at the slots of inline files."""
        inline = self._world.plan.inline
        if inline is None or self._probes.random() >= inline.unreachable:
            return True
        self._world.faults.count(Fault.BUCKET_SILENT)
        return False

    def _is_memory_short(self) -> bool:
        return self.clock.monotonic() % 0.1 < 0.04

    def _note_flush(self, trace: FileTrace) -> None:
        short = self._world.plan.memory_is_short and self._is_memory_short()
        self._world.flushes.setdefault(self.owner, []).append(Flush(trace, short))

    async def run(self) -> None:
        """Join, follow, serve."""
        if self._world.plan.failovers:
            await self._insist(self._keeper.check)
            self._world.loop.create_task(self._watch_life())
        await self._insist(self.view.catch_up)
        await self._insist(self.fetch.start)
        await self.produce.start()
        await self._insist(self.view.join)
        self.serving.set()

    def _dressed(self, line: BucketLine, rng: random.Random) -> ObjectStore:
        """The same as storage/objects/open.py does it."""
        settings = self._world.plan.settings
        store: ObjectStore = line
        if settings.store_hedge_percent:
            policy = HedgePolicy(settings.store_hedge_percent, settings.upload_parallelism, samples_min=HEDGE_SAMPLES)
            store = HedgedStore(store, policy, self.clock)
        if settings.store_retries:
            store = RetryingStore(store, settings.store_retries, self.clock, rng)
        return MergingStore(store)

    async def _insist(self, step: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await step()
                return
            except HeadraceError:
                await self.clock.sleep(RETRY_SECONDS)

    async def stop(self) -> None:
        """Do the same as agent/serve/broker.py does it: no new clients, everything received is answered, or the grace
        is over.
        """
        self.serving.clear()
        self.fetch.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.drain(), GRACE_SECONDS)
        await self.produce.close()
        await self.fetch.close()
        for connection in list(self.connections):
            connection.close()

    async def drain(self) -> None:
        """Every batch that was received gets a definite answer."""
        while self.in_progress[ApiKey.PRODUCE]:
            await self.clock.sleep(RETRY_SECONDS)
        await self.produce.drain()

    def waits_at_a_gap(self) -> bool:
        """Return whether it lets a producer wait for an earlier batch that another agent may have (decision 82)."""
        since = [notes.gap[1] for notes in self.produce._refused._producers.values() if notes.gap]
        return any(self.clock.monotonic() - seen < ELSEWHERE_SECONDS for seen in since)

    async def _watch_life(self) -> None:
        """Do the same as metastore/life/watch.py does it, with the position noted each time."""
        life = self._keeper.life
        while True:
            await self.clock.sleep(LIFE_CHECK_SECONDS)
            with contextlib.suppress(HeadraceError):
                is_current = await self._keeper.check() is LifeVerdict.CURRENT
                if self._keeper.life != life:
                    life = self._keeper.life
                    self._in_life(is_current)
                await self._keeper.note_position()

    def _in_life(self, is_current: bool) -> None:
        """Do the same as agent/serve/broker.py does it."""
        if self.full is not None:
            self.full.in_life(is_current=is_current)
        if is_current:
            self._world.lives_heard[self.owner].append(self._world.loop.time())
            self.fetch.life_begins()
            self.produce.life_begins()
        else:
            self.fetch.life_is_over()

    def join_soon(self) -> None:
        """A heartbeat or a commit was refused."""
        if not self._is_joining:
            self._is_joining = True
            self._world.loop.create_task(self._join())

    async def _join(self) -> None:
        await self._insist(self.view.join)
        self._is_joining = False

    def _catch_up_soon(self, head: int) -> None:
        self._world.loop.create_task(self._catch_up())

    async def _catch_up(self) -> None:
        """The next page of the feed asks again when it fails."""
        with contextlib.suppress(HeadraceError):
            await self.view.catch_up()


class SimulatedAgent:
    """A node id, and the process that runs under it now; None while it is down."""

    def __init__(self, world: World, node_id: int) -> None:
        self._world = world
        self.node_id = node_id
        self.process: Process | None = None
        self.is_frozen = False
        self._lives = 0

    def boot(self) -> None:
        """Start a new life."""
        if self.process is not None:
            return
        self._lives += 1
        self.process = Process(self._world, self, self.node_id * 1000 + self._lives)
        self._world.loop.create_task(self.process.run(), context=self.process.context)
        self._world.lives_heard[self.process.owner].append(self._world.loop.time())  # one may have begun before
        self._world.note("boot", self.node_id, self._lives)

    def kill(self, process: Process | None = None) -> None:
        """End its process (this one, if it still runs) as kill -9 does; it is started again later."""
        if self.process is None or process not in (None, self.process):
            return
        victim, self.process = self.process, None
        self.is_frozen = False
        self._world.note("kill", self.node_id, self._lives)
        self._world.kills.append((self._world.loop.time(), self.node_id))
        self._world.loop.kill(victim.owner)
        for connection in list(victim.connections):
            connection.lose_process()
        self._world.happens_late(self._world.agent_rng.uniform(*RESTART_SECONDS), self.boot)

    def restart(self, process: Process) -> None:
        """Let its process stop in good order; a new one is started once it has."""
        self._world.note("stop", self.node_id, self._lives)
        stopping = self._world.loop.create_task(process.stop(), context=process.context)
        stopping.add_done_callback(lambda _: self._world.later(0.0, self.kill, process), context=self._world.context)

    def freeze(self, process: Process | None = None) -> None:
        """Stop its process for a while; fenced if that takes too long."""
        if self.process is None or self.is_frozen or process not in (None, self.process):
            return
        self.is_frozen = True
        frozen = self.process
        seconds = self._world.agent_rng.uniform(*PAUSE_SECONDS)
        self._world.note("freeze", self.node_id, seconds)
        self._world.loop.freeze(frozen.owner)
        if seconds > FENCED_AFTER_SECONDS:
            self._world.later(FENCED_AFTER_SECONDS, self.fence)
        self._world.later(seconds, self.thaw, frozen)

    def thaw(self, frozen: Process | None) -> None:
        """Let it continue, if it still runs."""
        if frozen is not None and self.process is frozen and self.is_frozen:
            self.is_frozen = False
            self._world.note("thaw", self.node_id)
            self._world.loop.thaw(frozen.owner)

    def fence(self, *, unregister: bool = False) -> None:
        """Its lease ran out: the metastore refuses it until it has joined again, under a new epoch if `unregister`."""
        self._world.faults.count(Fault.UNREGISTERED if unregister else Fault.FENCED)
        self._world.note("fence", self.node_id, unregister)
        self._world.database.fence(self.node_id, unregister=unregister)
        if self.process is not None:
            seconds = self._world.agent_rng.uniform(*HEARTBEAT_SECONDS)
            self._world.loop.call_later(seconds, self.process.join_soon, context=self.process.context)
