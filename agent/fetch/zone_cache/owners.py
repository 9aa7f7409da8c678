"""Assigns each chunk to the agent of this zone that caches it for all of them.

Place: called for every chunk that is not in this agent's memory.
Invariant: agents with the same image choose the same owner; only active agents of the same zone are
chosen, so no data byte crosses zones (W15). Agents without a zone share one group.
A wrong owner only costs one more GET, because every agent serves every request. The only state is the
list of the zone's members in the newest image.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from headrace.agent.cluster.routing import chunk_role, preferred
from headrace.agent.cluster.view import ClusterView
from headrace.metastore.log.image import AgentImage, MetadataImage


class ChunkOwners:
    """The owners that follow from the newest image."""

    def __init__(self, view: ClusterView, on_members: Callable[[Sequence[AgentImage]], None]) -> None:
        """`on_members` is called with the agents of the zone whenever they may have changed."""
        self._view = view
        self._on_members = on_members
        self._image: MetadataImage | None = None
        self._members: list[AgentImage] = []

    def owner(self, file_id: uuid.UUID, chunk: int) -> AgentImage | None:
        """The other agent to ask for the chunk; None if this agent is the owner, or there is no other."""
        members = self._zone()
        if not members:
            return None
        chosen = preferred(chunk_role(file_id, chunk), members)
        return None if chosen is None or chosen.node_id == self._view.node_id else chosen

    def _zone(self) -> list[AgentImage]:
        """The active agents of this agent's zone; empty while it is alone or not registered."""
        image = self._view.image
        if image is not self._image:
            own = image.agents.get(self._view.node_id)
            members = [] if own is None else [agent for agent in image.live_agents() if agent.rack == own.rack]
            self._members = members if len(members) > 1 or (members and members[0] is not own) else []
            self._image = image
            self._on_members(self._members)
        return self._members
