"""Names an advertised address of this agent that others cannot use.

Place: called with every new image of an agent; it only writes to the log.
Invariant: each complaint is logged once. An agent is never stopped for its address: it may be a test, or the network
may be set up so that the address works.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterable

from headrace.metastore.api.agents import Listener
from headrace.metastore.log.image import AgentImage, MetadataImage

logger = logging.getLogger(__name__)


class AddressCheck:
    """A callback for MetadataFollower.on_image."""

    def __init__(self, own_node_id: Callable[[], int]) -> None:
        self._own_node_id = own_node_id
        self._told: set[str] = set()

    def __call__(self, image: MetadataImage) -> None:
        """Log the complaints that are new."""
        own = image.agents.get(self._own_node_id())
        if own is None:
            return
        others = [agent for agent in image.live_agents() if agent.node_id != own.node_id]
        for complaint in complaints(own, others):
            if complaint not in self._told:
                self._told.add(complaint)
                logger.warning("%s", complaint)


def complaints(own: AgentImage, others: Iterable[AgentImage]) -> list[str]:
    """What is wrong with the agent's addresses, given those of the other live agents."""
    found = []
    for listener in own.listeners:
        beyond = next((e for e in _of(others, listener.name) if not _only_here(e.host)), None)
        if _only_here(listener.host) and beyond is not None:
            found.append(
                "other hosts cannot connect to an advertised address of this agent:"
                f" listener={listener.name} address={listener.host}:{listener.port}"
                f" another_agent={beyond.host}:{beyond.port}; set advertised.listeners to an address of this host"
            )
    return found


def _of(agents: Iterable[AgentImage], name: str) -> Iterable[Listener]:
    return (agent.endpoint(name) for agent in agents)


def _only_here(host: str) -> bool:
    """Whether only this machine can connect to it. Names are not looked up."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return address.is_loopback or address.is_unspecified
