"""What an idempotent producer knows of leaders, and a connection to each agent that stays open.

Place: idempotent_producer.py, in schedules with moves. Invariant: as in the libraries, it is what some agent answered a
while ago. It is asked for again after a time, and when something fails; the answer is real routing
(agent/cluster/routing.py) of the image that the agent has at that moment.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.metadata import Place
from tests.simulation.network import SimulatedConnection

if TYPE_CHECKING:
    from tests.simulation.world import World

AGE_SECONDS = (0.05, 0.3, 2.0, 60.0)
"""How old it may become, on average: metadata.max.age.ms, which also other failures cut short."""


class Leaders:
    """The leaders that one producer knows."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._age = rng.choice(AGE_SECONDS)
        self._known: dict[int, int] = {}
        self._until = 0.0
        self._kept: dict[int, SimulatedConnection] = {}

    def keep(self, connection: SimulatedConnection) -> None:
        """Use the connection for what goes to its agent."""
        self._kept[connection.node_id] = connection

    def of(self, place: Place) -> int:
        """Return the node id of the leader; any agent's, if there is none."""
        now = self._world.loop.time()
        if now >= self._until:
            self._known.clear()
            self._until = now + self._rng.expovariate(1 / self._age)
        if place.key not in self._known:
            self._known[place.key] = self._ask(place)
        return self._known[place.key]

    def look_soon(self) -> None:
        """Something failed."""
        self._until = 0.0

    def connection(self, place: Place) -> SimulatedConnection:
        """Return the connection to the leader, a new one if it has ended; closed if the agent is down."""
        node_id = self.of(place)
        kept = self._kept.get(node_id)
        if kept is None or kept.is_closed:
            kept = self._kept[node_id] = SimulatedConnection(self._world, self._world.agents[node_id - 1].process)
            if kept.is_closed:
                self.look_soon()
        return kept

    def _ask(self, place: Place) -> int:
        agents = [agent for agent in self._world.agents if agent.process and agent.process.serving.is_set()]
        asked = self._rng.choice(agents or self._world.agents)
        leader = asked.process.view.leader(place.key) if asked.process is not None else None
        return self._rng.choice(self._world.agents).node_id if leader is None else leader.node_id
