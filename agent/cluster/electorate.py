"""The agents of an image, and whom they elect.

Place: routing.py; the routes of all images with the same agents share one object, because most images change topics.
Invariant: what is decided follows from the agents alone. An object takes over what the one before it elected
(elections.py), so a change of one agent among 1,000 does not elect the leaders of all commit shards again.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.agent.cluster.elections import Elections
from headrace.agent.cluster.spread import AGENTS_MAX, REGISTERED_MAX
from headrace.metastore.log.image import AgentImage, MetadataImage

Between = tuple[tuple[int, ...], tuple[int, ...]]
"""Registered and live agents of a zone: node ids, ascending."""

CONTROLLER_ROLE = "controller"


def shard_role(shard: int) -> str:
    """The name under which agents compete for a commit shard."""
    return f"shard:{shard}"


def group_role(group_id: str) -> str:
    """The name under which agents compete for a consumer group."""
    return f"group:{group_id}"


class Electorate:
    """The agents of one image; each result is computed on first use."""

    def __init__(self, image: MetadataImage, before: Electorate | None) -> None:
        """`before`: of an earlier image."""
        self.agents: Mapping[int, AgentImage] = image.agents
        self.live = image.live_agents()
        self.live_node_ids = [agent.node_id for agent in self.live]
        self.zones = {agent.rack for agent in self.live}
        self._between: dict[str | None, Between | None] = {}
        self._shards: dict[str | None, Elections[int]] = {}
        self._shards_before: dict[str | None, Elections[int]] = {}
        self._groups: Elections[str] | None = None
        self._groups_before: Elections[str] | None = None
        self._controllers: Elections[str] | None = None
        self._controllers_before: Elections[str] | None = None
        if before is not None:
            known = before._shards_before | before._shards
            self._shards_before = {zone: held for zone, held in known.items() if zone is None or zone in self.zones}
            self._groups_before = before._groups or before._groups_before
            self._controllers_before = before._controllers or before._controllers_before

    def shards(self, zone: str | None) -> Elections[int]:
        """Return the elections for commit shards among the live agents of the zone; of all for None."""
        if zone not in self._shards:
            self._shards[zone] = Elections(self._node_ids(zone), shard_role, self._shards_before.get(zone))
        return self._shards[zone]

    def coordinator(self, group_id: str) -> AgentImage | None:
        """Return the agent for the group, of all that hold a lease."""
        return self.agent(self._coordinators().winner(group_id))

    def coordinator_scores(self, group_id: str) -> int:
        """Return how many scores `coordinator` would compute."""
        return self._coordinators().scores_needed(group_id)

    def _coordinators(self) -> Elections[str]:
        if self._groups is None:
            members = (agent.node_id for agent in self.agents.values() if agent.member)
            self._groups = Elections(members, group_role, self._groups_before)
        return self._groups

    def controller(self) -> AgentImage | None:
        """Return the live agent that clients see as the controller."""
        if self._controllers is None:
            self._controllers = Elections(self.live_node_ids, str, self._controllers_before)
        return self.agent(self._controllers.winner(CONTROLLER_ROLE))

    def agent(self, node_id: int | None) -> AgentImage | None:
        """Return None for None."""
        return None if node_id is None else self.agents[node_id]

    def dealt_between(self, zone: str | None) -> Between | None:
        """Return the registered and the live agents of the zone: those that are fenced, hidden or leaving keep their
        places, so that only their partitions move. None: the zone has none, or too many.
        """
        if zone not in self._between:
            self._between[zone] = self._find_between(zone)
        return self._between[zone]

    def _find_between(self, zone: str | None) -> Between | None:
        live = self._node_ids(zone)
        if not 0 < len(live) <= AGENTS_MAX:
            return None
        agents = self.agents.values()
        registered = tuple(sorted(agent.node_id for agent in agents if zone is None or agent.rack == zone))
        return registered if len(registered) <= REGISTERED_MAX else live, live

    def _node_ids(self, zone: str | None) -> tuple[int, ...]:
        return tuple(agent.node_id for agent in self.live if zone is None or agent.rack == zone)
