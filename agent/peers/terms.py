"""What one agent needs to talk to the others: the cluster's secret, its node id, the clock they share, connections.

Place: made once per agent, by agent/serve/paths.py; forwarding, health reports and the zone cache take it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.agent.peers.connection import Connect, open_connection


@dataclass(frozen=True, slots=True)
class PeerTerms:
    """Of one agent."""

    secret: bytes
    """Only the cluster's agents have it (metastore/api/cluster.py)."""
    own_node_id: Callable[[], int]
    """-1 until it has registered."""
    now_ms: Callable[[], int]
    """The database's clock: messages that are too old are refused by it."""
    listener: str | None = None
    """inter.broker.listener.name; None: agents are asked at their first listener."""
    connect: Connect = open_connection
