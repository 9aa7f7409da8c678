"""A client's zone, as far as its client.id tells it (W15).

Place: Metadata answers, so that producers are sent to an agent of their own zone; Fetch has the
consumer's rack besides. If the process dies here nothing is lost: no state.
"""

from __future__ import annotations

from functools import lru_cache

_ELEMENT = "zone="


@lru_cache(maxsize=4096)
def zone_of(client_id: str | None) -> str | None:
    """The zone in a client.id such as `orders-7,zone=eu-west-1a`: elements are separated by commas.

    None when no element says one; the first of several rules.
    """
    for element in (client_id or "").split(","):
        name = element.strip()
        if name.startswith(_ELEMENT) and len(name) > len(_ELEMENT):
            return name.removeprefix(_ELEMENT)
    return None
