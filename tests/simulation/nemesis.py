"""What happens to the world on its own: killed, paused and fenced agents, clocks that jump, and so on.

Invariant: everything is drawn from the seed before the schedule begins, and nothing comes after it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tests.simulation.agents import SimulatedAgent
from tests.simulation.faults import Fault
from tests.simulation.metadata import Place
from tests.simulation.produce_call import deliver_again

if TYPE_CHECKING:
    from tests.simulation.world import World

SMALL_JUMP_MS = 30_000
BEYOND_ANSWERS_MS = 2 * 3_600_000
"""Files created before are refused for their age."""
BACK_BEYOND_BIRTHS_MS = -20 * 60_000
"""Files created after are refused for coming from the future."""
TOPIC_ABSENT_SECONDS = (0.0, 0.5)
MOVE_SECONDS = (0.0, 0.6)
"""Seconds between the moves of a leader."""
CREATES_AGAIN_SECONDS = 0.02


class Nemesis:
    """Strikes `plan.blows[fault]` times for each kind of blow."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.nemesis_rng
        self._far_jumps_left = 1
        self._blows: Mapping[Fault, Callable[[], None]] = {
            Fault.KILLED: self._kill,
            Fault.RESTARTED: self._restart,
            Fault.FROZEN: self._freeze,
            Fault.FENCED: self._fence,
            Fault.WALL_JUMP: self._jump_wall,
            Fault.DATABASE_JUMP: self._jump_database,
            Fault.REPLAYED: self._replay,
            Fault.FEED_FORGOTTEN: self._forget_feed,
            Fault.LOG_START_MOVED: self._move_log_start,
            Fault.INCARNATION: self._change_incarnation,
            Fault.SWEPT: self._sweep,
            Fault.EPOCH_RAISED: self._raise_epoch,
            Fault.TOPIC_DELETED: self.delete_topic,
            Fault.MERGED: self._merge,
            Fault.SHARDS_GROWN: self._grow_shards,
        }

    def start(self) -> None:
        """Put every blow on the calendar."""
        plan = self._world.plan
        for fault, times in plan.blows.items():
            for _ in range(times):
                self._world.later(self._rng.uniform(0.02, plan.seconds), self._strike, fault)

    def _strike(self, fault: Fault) -> None:
        """Do it, unless producers came to their end sooner and all is calm: final readers have begun."""
        if not self._world.is_calm:
            self._blows[fault]()

    def _any_agent(self) -> SimulatedAgent:
        return self._rng.choice(self._world.agents)

    def _kill(self) -> None:
        self._world.faults.count(Fault.KILLED)
        self._any_agent().kill()

    def _restart(self) -> None:
        agent = self._any_agent()
        if agent.process is not None and agent.process.serving.is_set():
            self._world.faults.count(Fault.RESTARTED)
            agent.restart(agent.process)

    def _freeze(self) -> None:
        self._world.faults.count(Fault.FROZEN)
        self._any_agent().freeze()

    def _fence(self) -> None:
        self._any_agent().fence(unregister=self._rng.random() < 0.5)

    def _jump_wall(self) -> None:
        process = self._any_agent().process
        if process is not None:
            self._world.faults.count(Fault.WALL_JUMP)
            process.clock.jump(self._rng.randint(-SMALL_JUMP_MS, SMALL_JUMP_MS))

    def _jump_database(self) -> None:
        jump = self._rng.randint(-SMALL_JUMP_MS, SMALL_JUMP_MS)
        if self._far_jumps_left and self._rng.random() < 0.5:
            self._far_jumps_left -= 1
            jump = self._rng.choice((BEYOND_ANSWERS_MS, BACK_BEYOND_BIRTHS_MS))
        self._world.faults.count(Fault.DATABASE_JUMP)
        self._world.note("database clock", jump)
        self._world.database.clock.jump(jump)

    def _replay(self) -> None:
        recent = self._world.repeatable[-12:]
        if recent:
            self._world.faults.count(Fault.REPLAYED)
            connection = self._world.connect(self._rng)
            if not connection.is_closed:
                deliver_again(self._world, connection, self._rng.choice(recent))

    def _forget_feed(self) -> None:
        model = self._world.database.model
        shard = self._rng.randrange(model.shards)
        self._world.faults.count(Fault.FEED_FORGOTTEN)
        self._world.note("feed forgotten", shard)
        model.forget_feed(shard)

    def _grow_shards(self) -> None:
        model = self._world.database.model
        if not self.is_between_lives():
            self._world.faults.count(Fault.SHARDS_GROWN)
            self._world.note("shards", 2 * model.shards)
            model.grow_shards(2 * model.shards)

    def _move_log_start(self) -> None:
        place = self._rng.choice([place for topic in self._world.metadata.living() for place in topic.places()])
        model = self._world.database.model
        partition = model.partitions[place.key]
        offset = self._rng.randint(partition.log_start_offset, partition.high_watermark)
        self._world.faults.count(Fault.LOG_START_MOVED)
        self._world.note("log start moved", str(place), offset)
        self._world.database.move_log_start(place, offset)

    def _change_incarnation(self) -> None:
        """A failover: nothing is lost, but no code may rely on that."""
        self._world.faults.count(Fault.INCARNATION)
        self._world.note("new incarnation")
        self._world.database.model.incarnation_id = uuid.UUID(int=self._rng.getrandbits(128))

    def _sweep(self) -> None:
        self._world.note("sweep")
        self._world.sweeper.sweep(self._rng)

    def _merge(self) -> None:
        self._world.faults.count(Fault.MERGED)
        self._world.compactor.merge(self._rng)

    def is_between_lives(self) -> bool:
        """Return whether the metastore refuses every change."""
        return self._world.database.timeline != self._world.database.begun_timeline

    def _raise_epoch(self) -> None:
        if self.is_between_lives():
            return
        topic = self._rng.choice(self._world.metadata.living())
        index = self._rng.randrange(topic.partition_count)
        self._world.faults.count(Fault.EPOCH_RAISED)
        self._world.note("leader epoch raised", topic.number, index)
        self._world.metadata.raise_leader_epoch(topic, index)

    def shake_leader(self, place: Place) -> None:
        """Move the leader of a partition about to get batches: mostly there and back again."""
        agents = [agent.node_id for agent in self._world.agents]
        home = self._rng.choice(agents)
        away = self._rng.choice([node_id for node_id in agents if node_id != home])
        at = 0.0
        for node_id in self._rng.choice(((), (away,), (away, home), (away, home), (home, away, home))):
            at += self._rng.uniform(*MOVE_SECONDS)
            self._world.later(at, self._move_leader, place, node_id)

    def _move_leader(self, place: Place, node_id: int) -> None:
        if place.topic.deleted_at is None and not self.is_between_lives():
            self._world.faults.count(Fault.LEADER_MOVED)
            self._world.note("leader moved", str(place), node_id)
            self._world.metadata.move_leader(place, node_id)

    def delete_topic(self, absent_seconds: float | None = None) -> None:
        """And create it again, soon or after that time."""
        mortals = [topic for topic in self._world.metadata.living() if topic.is_mortal]
        if not mortals or self.is_between_lives():
            return
        topic = self._rng.choice(mortals)
        self._world.faults.count(Fault.TOPIC_DELETED)
        self._world.note("topic deleted", topic.number)
        self._world.metadata.delete_topic(topic, self._world.loop.time())
        if absent_seconds is None:
            absent_seconds = self._rng.uniform(*TOPIC_ABSENT_SECONDS)
        self._world.later(absent_seconds, self._create_topic, topic.name)

    def _create_topic(self, name: str) -> None:
        if self.is_between_lives():
            self._world.later(CREATES_AGAIN_SECONDS, self._create_topic, name)
            return
        if any(topic.name == name for topic in self._world.metadata.living()):  # a copy brought it back
            return
        self._world.faults.count(Fault.TOPIC_CREATED)
        topic = self._world.metadata.create_topic(name, 1, is_mortal=True)
        self._world.note("topic created", topic.number)
