"""What the rest of the agent may ask about the cluster: the seam in front of agent/cluster.

Place: produce, fetch, groups and admin resolve names, ids and agents here.
Invariant: `image` is replaced whole, never changed; a request takes it once and resolves each name
once. A name or id that the image lacks is unknown only after `catch_up`.
"""

from __future__ import annotations

from typing import Protocol

from headrace.metastore.log.image import AgentImage, MetadataImage


class ClusterView(Protocol):
    """The agent's own place and its picture of the others."""

    @property
    def cluster_id(self) -> str:
        """base64url UUID, as Kafka prints it."""

    @property
    def commit_shards(self) -> int:
        """Fixed when the cluster was first migrated."""

    @property
    def node_id(self) -> int:
        """-1 until the agent has registered."""

    @property
    def broker_epoch(self) -> int:
        """Changes when the agent has to register again; -1 until it has registered."""

    @property
    def image(self) -> MetadataImage:
        """The newest image."""

    async def catch_up(self) -> MetadataImage:
        """Follow the log to the head that it has now (one cheap query when nothing changed)."""

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        """The live agent that clients are sent to for this partition (rendezvous hash over its commit shard).

        With a zone, an agent of that zone if it has a live one.
        """

    def coordinator(self, group_id: str) -> AgentImage | None:
        """The live agent that coordinates this group (rendezvous hash)."""
