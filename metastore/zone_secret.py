"""The secret by which agents of one cluster know each other.

Place: read once by each agent when it starts; the zone cache signs its calls with it.
Invariant: it never changes and is never logged. Whoever can read it can read the metastore anyway.
"""

from __future__ import annotations

from typing import Protocol


class ZoneSecretApi(Protocol):
    """What the metastore keeps for all agents of the cluster."""

    async def zone_secret(self) -> bytes:
        """32 bytes."""
