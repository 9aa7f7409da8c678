"""What the rest of the agent may ask about the cluster: the seam in front of agent/cluster.

Place: produce, fetch, groups and admin resolve names, ids and agents here.
Invariant: `image` is replaced whole, never changed; a request takes it once and resolves each name
once. A name or id that the image lacks is unknown only after `catch_up`.
"""

from __future__ import annotations

from typing import Protocol

from metastore.log.image import AgentImage, MetadataImage


class ClusterView(Protocol):
    """The agent's own place and its picture of the others."""

    cluster_id: str
    commit_shards: int
    node_id: int
    broker_epoch: int
    """Changes when the agent has to register again."""

    @property
    def image(self) -> MetadataImage:
        """The newest image."""

    async def catch_up(self) -> MetadataImage:
        """Follow the log to the head that it has now (one cheap query when nothing changed)."""

    def leader(self, partition_key: int) -> AgentImage | None:
        """The live agent that clients are sent to for this partition (rendezvous hash over its commit shard)."""

    def coordinator(self, group_id: str) -> AgentImage | None:
        """The live agent that coordinates this group (rendezvous hash)."""
