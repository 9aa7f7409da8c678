"""Names an advertised address of this agent that others cannot use.

Place: called with every new image of an agent; it only writes to the log.
Invariant: each complaint is logged once. An agent is never stopped for its address: it may be a test, or the network
may be set up so that the address works.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from headrace.agent.cluster.shared_address import cannot_forward
from headrace.config.addresses import address_text
from headrace.metastore.api.agents import Listener
from headrace.metastore.log.image import AgentImage, MetadataImage

logger = logging.getLogger(__name__)


class AddressCheck:
    """A callback for MetadataFollower.on_image."""

    def __init__(
        self,
        own_node_id: Callable[[], int],
        inter_broker: str | None = None,
        is_shared: Callable[[], bool] = lambda: False,
    ) -> None:
        """`inter_broker`: inter.broker.listener.name; `is_shared`: advertised.shared in force."""
        self._own_node_id = own_node_id
        self._inter_broker = inter_broker
        self._is_shared = is_shared
        self._told: set[str] = set()
        self._checked: tuple[object, int, bool] | None = None
        """The agents, this one's node id and whether the address is shared: what was checked last."""

    def __call__(self, image: MetadataImage) -> None:
        """Log the complaints that are new."""
        node_id, is_shared = self._own_node_id(), self._is_shared()
        own = image.agents.get(node_id)
        before, self._checked = self._checked, (image.agents, node_id, is_shared)
        if own is None or (before and before[0] is image.agents and before[1:] == (node_id, is_shared)):
            return
        others = [agent for agent in image.live_agents() if agent.node_id != own.node_id]
        found = complaints(own, others, self._inter_broker, is_shared=is_shared)
        for complaint in found:
            if complaint not in self._told:
                self._told.add(complaint)
                logger.warning("%s", complaint)


def complaints(
    own: AgentImage, others: Sequence[AgentImage], inter_broker: str | None = None, *, is_shared: bool = False
) -> list[str]:
    """Return what is wrong with the agent's addresses, given those of the other live agents."""
    found = [*_same_address(own, others, inter_broker, is_shared=is_shared)]
    if is_shared and own.endpoint(inter_broker).name != inter_broker:
        found.append(
            "advertised.shared is set, but this agent has no address for agents, so clients do not see one broker:"
            " set inter.broker.listener.name, and the listener in listeners and advertised.listeners"
        )
    elif is_shared and (unable := cannot_forward([own, *others], inter_broker)):
        nodes = ", ".join(str(agent.node_id) for agent in unable)
        found.append(f"advertised.shared is set, but clients do not see one broker: agents cannot forward: {nodes}")
    for listener in own.listeners:
        beyond = next((e for e in _of(others, listener.name) if not _only_here(e.host)), None)
        if _only_here(listener.host) and beyond is not None:
            found.append(
                "other hosts cannot connect to an advertised address of this agent:"
                f" listener={listener.name} address={address_text(listener.host, listener.port)}"
                f" another_agent={address_text(beyond.host, beyond.port)};"
                " set advertised.listeners to an address of this host"
            )
    return found


def _same_address(
    own: AgentImage, others: Sequence[AgentImage], inter_broker: str | None, *, is_shared: bool
) -> Iterator[str]:
    """One complaint per listener. Only of agents that registered later: an earlier one may have been this process
    before its restart, and its lease has not expired yet.
    """
    later = [agent for agent in others if agent.broker_epoch > own.broker_epoch]
    for listener in own.listeners:
        place = f"listener={listener.name} address={address_text(listener.host, listener.port)}"
        same = [a.node_id for a in later if a.endpoint(listener.name)[:3] == listener[:3]]
        if same and listener.name == inter_broker:
            yield f"agents advertise one address for other agents: {place} node_ids={same}; each needs its own"
        elif same and not is_shared:
            yield (
                f"agents advertise one address: {place} node_ids={same}; consumer groups do not work: set"
                " inter.broker.listener.name on each agent, then: headrace configs set advertised.shared=true --brokers"
            )


def _of(agents: Iterable[AgentImage], name: str) -> Iterable[Listener]:
    return (agent.endpoint(name) for agent in agents)


def _only_here(host: str) -> bool:
    """Return whether only this machine can connect to it. Names are not looked up."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return address.is_loopback or address.is_unspecified
