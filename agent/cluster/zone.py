"""A client's zone, from its client.id (W15).

Place: Metadata directs producers to an agent of their zone; Fetch also has the
consumer's rack.
"""

from __future__ import annotations

from functools import lru_cache

_ELEMENT = "zone="


@lru_cache(maxsize=4096)
def zone_of(client_id: str | None) -> str | None:
    """The zone in a client.id such as `orders-7,zone=eu-west-1a`: elements are separated by commas.

    None if there is no such element; the first of several.
    """
    for element in (client_id or "").split(","):
        name = element.strip()
        if name.startswith(_ELEMENT) and len(name) > len(_ELEMENT):
            return name.removeprefix(_ELEMENT)
    return None
