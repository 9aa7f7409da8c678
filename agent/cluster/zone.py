"""A client's zone, from its client.id (W15).

Place: Metadata directs producers to an agent of their zone; Fetch also has the
consumer's rack.
"""

from __future__ import annotations

from headrace.agent.limits.client_memory import ClientMemory, text_bytes
from headrace.config.memory_budget import REMEMBERED_BYTES

_ELEMENT = "zone="
_NO_ZONE = ""
_CLIENT_ID_BYTES = 2_048
"""A longer client id is read again for each request."""

remembered: ClientMemory[str | None, str] = ClientMemory(
    REMEMBERED_BYTES["client_zones"], lambda client_id, zone: text_bytes(client_id, zone), _CLIENT_ID_BYTES
)
"""The zones of client ids, of all agents of the process."""


def zone_of(client_id: str | None) -> str | None:
    """The zone in a client.id such as `orders-7,zone=eu-west-1a`: elements are separated by commas.

    None if there is no such element; the first of several.
    """
    zone = remembered.get(client_id)
    if zone is None:
        zone = _find(client_id) or _NO_ZONE
        remembered.put(client_id, zone)
    return zone or None


def _find(client_id: str | None) -> str | None:
    for element in (client_id or "").split(","):
        name = element.strip()
        if name.startswith(_ELEMENT) and len(name) > len(_ELEMENT):
            return name.removeprefix(_ELEMENT)
    return None
