"""The mode in which all agents have one address: one virtual node instead of the agents.

Place: asked by the requests that show agents to clients (Metadata, DescribeCluster, FindCoordinator, ...), by
agent/peers/forwarding, and by the read path.
Definitions: the mode is *set* while advertised.shared is true; it is *shown* on a listener once every live agent can
forward requests.
Invariant: an agent forwards as soon as the mode is set, and clients see the virtual node only while every live agent
forwards: with any other agent a group would not be found. The listener for agents never shows it: its clients see
each agent, with its private address.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable

from headrace.agent.cluster.view import ClusterView
from headrace.config.bounds import VIRTUAL_NODE_ID
from headrace.metastore.api.agents import SHARED_ADDRESS, Listener
from headrace.metastore.log.image import AgentImage, MetadataImage

_NO_INCARNATION = uuid.UUID(int=0)


class SharedAddress:
    """Shared address of one agent. Its answers belong to the newest image."""

    def __init__(
        self,
        view: ClusterView,
        is_set: Callable[[], bool],
        inter_broker: str | None,
        advertised: tuple[Listener, ...],
    ) -> None:
        """`is_set`: advertised.shared in force; `advertised`: this agent's listeners."""
        self._view, self._is_set, self._inter_broker = view, is_set, inter_broker
        first = advertised[0]
        self._node = AgentImage(
            VIRTUAL_NODE_ID,
            -1,
            _NO_INCARNATION,
            first.host,
            first.port,
            None,
            fenced=False,
            listeners=advertised,
        )
        self._image: MetadataImage | None = None
        self._all_forward = False

    def forwards(self, listener: str) -> bool:
        """Return whether this agent forwards what clients of this listener ask for at the wrong agent."""
        return self._inter_broker is not None and listener != self._inter_broker and self._is_set()

    @property
    def is_set(self) -> bool:
        """Whether advertised.shared is in force."""
        return self._is_set()

    def node(self, listener: str) -> AgentImage | None:
        """The virtual node, with the addresses of this agent, if clients of the listener see it."""
        return self._node if self.forwards(listener) and self._do_all_forward() else None

    def _do_all_forward(self) -> bool:
        image = self._view.image
        if image is not self._image:
            self._image = image
            self._all_forward = not cannot_forward(image.live_agents(), self._inter_broker)
        return self._all_forward


def virtual_node(shared: SharedAddress | None, listener: str) -> AgentImage | None:
    """Return what clients of the listener see instead of the agents; None: the agents. None for `shared`: no such
    mode.
    """
    return None if shared is None else shared.node(listener)


def cannot_forward(agents: list[AgentImage], inter_broker: str | None) -> list[AgentImage]:
    """Those of an older release, or without an address for other agents that no other agent has too."""
    places = [agent.endpoint(inter_broker) for agent in agents]
    addresses = [(place.host, place.port) for place in places]
    count = Counter(addresses)
    return [
        agent
        for agent, place, address in zip(agents, places, addresses, strict=True)
        if SHARED_ADDRESS not in agent.features or place.name != inter_broker or count[address] > 1
    ]
