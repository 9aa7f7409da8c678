"""What the metastore knows of the agents between two records of the log: their last heartbeats.

Place: for DescribeQuorum, where Kafka shows how far each observer has read.
Invariant: read-only; each agent writes its own (ClusterApi.heartbeat).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class AgentLease(NamedTuple):
    """As of the agent's last contact. `metadata_offset`: the next one that its image has not applied."""

    node_id: int
    metadata_offset: int
    last_contact_ms: int


class AgentLeaseApi(Protocol):
    """Reading leases."""

    async def agent_leases(self) -> list[AgentLease]:
        """One of each registered agent, by node id."""
