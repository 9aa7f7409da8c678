"""Random histories of a group while its topic doubles: members come, commit, step back and go, coordinators change.

What must hold at every step: no member has a child before the group has its parent up to the boundary behind it, or
that is deleted; and a child that the group has once been given stays in the target, until the
group has no members. In the end, when everything is read and committed, members have all children.
The judge keeps its own account of what may be read; it uses nothing of agent/groups/consumer/topics.py.
"""

from __future__ import annotations

import random

from headrace.agent.groups.members.member import LEAVE_EPOCH
from headrace.metastore.api.groups import ParentPosition
from headrace.metastore.keys import partition_key
from tests.agent.groups.consumer.consumer_world import Client, World

COUNT = 3
STEPS = 250
NAMES = frozenset({"t"})


class GateHistory:
    """One seed's. `problem`: the first one that was seen."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World()
        self.world.topics.put("t", COUNT)
        self.number = self.world.topics.by_name["t"].topic_number
        self.clients: list[Client] = []
        self.ends, self.starts = [0] * COUNT, [0] * COUNT
        self.boundaries: list[int | None] = [None] * COUNT
        self.committed: dict[int, int] = {}
        self.doubled = False
        self.may_read: set[int] = set()
        """Children, by index."""
        self.given: set[int] = set()
        self.problem: str | None = None

    def run(self) -> str | None:
        """The first problem, if there is one."""
        events = (
            *[self.act] * 6,
            *[self.commit] * 4,
            *[self.produce] * 3,
            self.start,
            self.leave,
            self.step_back,
            self.delete_records,
            self.set_boundary,
            self.world.move,
            self.reset,
        )
        for step in range(STEPS):
            if step == STEPS // 5:
                self.world.topics.double("t")
                self.doubled = True
            self.rng.choice(events)()
            self.world.store_all()
            self.check(step)
            if self.problem:
                return self.problem
        return self.finish()

    # -- what happens

    def start(self) -> None:
        if len(self.clients) < 3:
            self.clients.append(Client(self.world, f"m{self.rng.randrange(1 << 30)}", NAMES))

    def leave(self) -> None:
        if self.clients:
            client = self.clients.pop(self.rng.randrange(len(self.clients)))
            if client.epoch > 0:
                self.world.say(client.member_id, LEAVE_EPOCH)

    def act(self) -> None:
        if self.clients:
            self.look()
            self.rng.choice(self.clients).step()

    def look(self) -> None:
        """Do the same as coordinator.py does before a heartbeat."""
        group, topics = self.world.group, self.world.topics.topics(())
        self.world.now += self.rng.choice((0.0, 2.0))
        gates = group.gates_to_judge(self.world.now, topics, topics.of(NAMES, ""))
        if gates is not None:
            keys = {partition_key(self.number, index): index for index in range(COUNT)}
            positions = [
                ParentPosition(key, self.starts[index], self.committed.get(index))
                for key, index in keys.items()
                if key in {gate.parent_key for gate in gates}
            ]
            group.judge_gates(self.world.now, gates, positions)

    def produce(self) -> None:
        self.ends[self.rng.randrange(COUNT)] += self.rng.randrange(1, 4)

    def commit(self) -> None:
        """A member that has a parent continues in it."""
        index = self.rng.randrange(COUNT)
        if self._is_held(index):
            low = max(self.committed.get(index, 0), self.starts[index])
            self.committed[index] = self.rng.randint(low, self.ends[index])

    def step_back(self) -> None:
        """A member commits an earlier offset than before."""
        index = self.rng.randrange(COUNT)
        if self._is_held(index) and index in self.committed:
            self.committed[index] = self.rng.randint(self.starts[index], max(self.starts[index], self.committed[index]))

    def reset(self) -> None:
        """An admin may, while there are no members."""
        if not len(self.world.group.roster):
            self.committed = {index: self.starts[index] for index in self.committed}

    def delete_records(self) -> None:
        index = self.rng.randrange(COUNT)
        self.starts[index] = self.rng.randint(self.starts[index], self.ends[index])

    def set_boundary(self) -> None:
        index = self.rng.randrange(COUNT)
        if self.doubled and self.boundaries[index] is None:
            self.boundaries[index] = self.ends[index]
            self.world.topics.set_boundary("t", index, self.ends[index])

    # -- what must hold

    def check(self, step: int) -> None:
        members = self.world.group.roster
        if not len(members):
            self.may_read, self.given = set(), set()
        for index, boundary in enumerate(self.boundaries):
            if boundary is not None and max(self.committed.get(index, 0), self.starts[index]) >= boundary:
                self.may_read.add(index + COUNT)
        held = {index for member in members for index in range(2 * COUNT) if self._key(index) in member.holds}
        early = {index for index in held if index >= COUNT} - self.may_read
        if early and self.problem is None:
            self.problem = f"step={step} too early: children={early}"
        target = self.world.group.target
        wanted = {index for m in members for index in range(2 * COUNT) if self._key(index) in target.of(m.member_id)}
        if target.epoch == target.group_epoch and self.given - wanted and self.problem is None:
            self.problem = f"step={step} taken away: children={self.given - wanted}"
        self.given |= {index for index in held if index >= COUNT}

    def finish(self) -> str | None:
        """Everything is read."""
        if not self.clients:
            self.start()
        for index in range(COUNT):
            if self.boundaries[index] is None:
                self.set_boundary_of(index)
            if self.rng.random() < 0.5:
                self.committed[index] = self.ends[index]
            else:
                self.starts[index] = self.ends[index]
        for _ in range(60):
            self.world.pass_time(3.0)
            for client in self.clients:
                self.look()
                client.step()
                self.world.store_all()
        owned = [key for client in self.clients for key in client.owned]
        if sorted(owned) != [self._key(index) for index in range(2 * COUNT)]:
            return f"not all partitions are read in the end: owned={sorted(key & 255 for key in owned)}"
        return self.problem

    def set_boundary_of(self, index: int) -> None:
        self.boundaries[index] = self.ends[index]
        self.world.topics.set_boundary("t", index, self.ends[index])

    def _key(self, index: int) -> int:
        return partition_key(self.number, index)

    def _is_held(self, index: int) -> bool:
        return self.world.group.roster.holder(self._key(index)) is not None


def first_problem(seed: int) -> str | None:
    """Return the first problem of one history."""
    return GateHistory(seed).run()
