"""The metastore is replaced by a copy of what it was: a standby, a restored volume, or two that reach one timeline.

Place: started with nemesis.py, in schedules with failovers only. A server is a Database, a copy is its fork;
`world.database` is the one that is the metastore now.
Fault model: a promoted standby has everything, or lacks the last commits; the old server is gone, or stays up with some
agents connected to it for a while, or, after its address has moved, until they leave it; a copy of the same timeline
is declared the metastore by an operator, also one that was made just before the server's life began; the server
crashes while a large statement is under way, and comes back without its WAL.
"""

from __future__ import annotations

import math
import random
import uuid
from typing import TYPE_CHECKING

from headrace.metastore.api.life import ServerLife
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.numbers import NO_LIFE
from tests.nouns import nouns
from tests.simulation.database import Database
from tests.simulation.faults import Fault
from tests.simulation.metadata import NamesDatabase
from tests.simulation.nemesis import Nemesis
from tests.simulation.plan import Crash, Failover
from tests.simulation.remote import run_at_once

if TYPE_CHECKING:
    from tests.simulation.world import World

_BEFORE_LIFE = 0x5EED_0007
"""Mixed into the seed for what was added later, as in seeds.py."""
SECOND_PROMOTION_SECONDS = (0.05, 0.6)
STAYS_SHARE, STAYS_SECONDS = 0.5, (0.5, 3.0)
MOVED_SHARE = 0.5
"""Share of those, but for the first agent: the address leads to the new server, and connections to the old
one stay open until the agent leaves them. One agent has to connect to the new server, or nothing says that there is
one.
"""
UNFLUSHED_BYTES = 1_000_000
BEFORE_LIFE_SHARE = 0.5
"""Share of the copies of a promoted server that an operator declares: made just before its life began."""
COMES_BACK_SECONDS = 2.0
"""Seconds until it knows the new life, and commits what it holds."""
TOPIC_SHARE, LOOK_SECONDS = 0.5, 0.001
"""How long an agent stays connected to an old server that is up."""


class Failovers:
    """Those of the plan."""

    def __init__(self, world: World, nemesis: Nemesis) -> None:
        self._world = world
        self._nemesis = nemesis
        self._rng = random.Random(world.plan.seed)
        self._early = random.Random(world.plan.seed ^ _BEFORE_LIFE)

    def start(self) -> None:
        """Put them on the calendar."""
        for failover in self._world.plan.failovers:
            self._world.later(max(failover.at - failover.lag, 0.0), self._copy, failover)
        for crash in self._world.plan.crashes:
            self._world.later(max(crash.at - crash.writing, 0.0), self._write_much, crash)

    def _write_much(self, crash: Crash) -> None:
        server = self._world.database
        server.unflushed = UNFLUSHED_BYTES
        self._world.happens_late(crash.writing, self._crash, server, crash.down)

    def _crash(self, server: Database, down: float) -> None:
        """Crash: what was flushed is still there, and every connection breaks."""
        server.unflushed = 0
        if server is self._world.database:
            self._world.faults.count(Fault.CRASHED)
            self._world.note(Fault.CRASHED.value, server.timeline)
            server.is_up = False
            self._world.happens_late(down, self._recover, server)

    def _recover(self, server: Database) -> None:
        if server is self._world.database:
            server.is_up = True

    def _copy(self, failover: Failover) -> None:
        origin = self._world.database
        copies = [origin.fork() for _ in range(2 if failover.kind is Fault.PROMOTED_TWICE else 1)]
        early = origin.before_life
        if failover.kind is Fault.RESTORED and early is not None and self._early.random() < BEFORE_LIFE_SHARE:
            copies = [early]
        self._later(failover.lag, failover.kind, origin, origin.timeline, copies)
        if self._rng.random() < TOPIC_SHARE:  # a topic that the copies do not know, and one after them
            self._world.later(0.0, self._nemesis.delete_topic, 0.0)
            self._world.later(failover.lag, self._remake_topic, len(self._world.past))

    def _remake_topic(self, past: int) -> None:
        """Do the same as soon as a life begins after the failover: before agents commit what they hold."""
        if self._world.is_calm:
            return
        if len(self._world.past) == past or self._nemesis.is_between_lives():
            self._world.later(LOOK_SECONDS, self._remake_topic, past)
        else:
            self._nemesis.delete_topic(0.0)

    def _later(self, seconds: float, kind: Fault, origin: Database, followed: int, copies: list[Database]) -> None:
        if seconds:
            self._world.happens_late(seconds, self._replace, kind, origin, followed, copies)
        else:
            self._replace(kind, origin, followed, copies)

    def _replace(self, kind: Fault, origin: Database, followed: int, copies: list[Database]) -> None:
        """`followed`: the timeline of the server that the copies were made of."""
        world, old, new = self._world, self._world.database, copies.pop()
        if old is not origin:  # it was replaced meanwhile
            return
        world.faults.count(kind)
        world.note(kind.value, followed)
        now = world.loop.time()
        old.replaced_at, old.is_up = now, kind is Fault.SPLIT
        old.lost_with = kind
        world.past.append(old)
        world.database = new
        new.metadata.activate(now, old.metadata.topics)
        new.activate(now, promoted_from=None if kind is Fault.RESTORED else followed)
        if kind is Fault.SPLIT:
            self._let_some_stay(old)
        if kind is Fault.RESTORED:
            run_at_once(
                LifeKeeper(nouns(Operator(new)).life, world.bucket.notes, world.clock, self._rng).begin_anew("restored")
            )
        if copies:
            self._later(self._rng.uniform(*SECOND_PROMOTION_SECONDS), kind, new, followed, copies)

    def _let_some_stay(self, old: Database) -> None:
        for agent in self._world.agents:
            if agent.process is not None and self._rng.random() < STAYS_SHARE:
                now, stays = self._world.loop.time(), self._rng.uniform(*STAYS_SECONDS)
                has_moved = self._rng.random() < MOVED_SHARE and agent is not self._world.agents[0]
                agent.process.metastore.stay_on(old, math.inf if has_moved else now + stays)
                self._world.stay_until(now + stays + COMES_BACK_SECONDS)


class Operator(NamesDatabase):
    """LifeApi straight on a server, for `headrace migrate --restored`."""

    named_life = NO_LIFE

    def __init__(self, server: Database) -> None:
        self._server = server

    def name_life(self, life: int) -> None:
        self.named_life = life

    def leave_connections(self) -> None:
        """It has none."""

    async def describe_life(self) -> ServerLife:
        return self._server.describe_life()

    async def prepare_life(self, incarnation_id: uuid.UUID, spent: uuid.UUID | None = None) -> uuid.UUID:
        return self._server.prepare_life(incarnation_id, spent)

    async def begin_life(self, life: int, incarnation_id: uuid.UUID) -> bool:
        return self._server.begin_life(life, incarnation_id)
