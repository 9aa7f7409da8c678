"""Names of groups, and of their members' clients, as requests have them.

Place: asked by the handlers of group requests before anything else.
"""

from __future__ import annotations

from headrace.agent.limits.stored_ids import storable
from headrace.protocol.request import ClientConnection


def is_legal_group_id(group_id: str) -> bool:
    """Members' groups have a name; a consumer that assigns itself may commit without one."""
    return bool(group_id) and storable(group_id)


def client_host(client: ClientConnection) -> str:
    """The address of a client, as Kafka writes it in the description of a group."""
    return "/" + client.peer.rpartition(":")[0]
