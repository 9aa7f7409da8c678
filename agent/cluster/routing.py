"""Which live agent stands for a commit shard or a group: rendezvous hashing, pure.

Place: Metadata and FindCoordinator tell clients what is decided here; a coordinator checks itself by it.
Invariant: every agent that holds the same image decides alike, and when an agent is lost only its own
share moves. The hash is fixed (BLAKE2b), never Python's own, which differs from process to process.
It is a hint that buys locality: any agent still accepts anything (W1). No state of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from metastore.keys import commit_shard
from metastore.log.image import AgentImage, MetadataImage


def shard_role(shard: int) -> str:
    """The name under which agents compete for a commit shard."""
    return f"shard:{shard}"


def group_role(group_id: str) -> str:
    """The name under which agents compete for a consumer group."""
    return f"group:{group_id}"


def score(node_id: int, role: str) -> int:
    """How much the agent is preferred for the role: 64 bits, the same in every process and release."""
    return int.from_bytes(hashlib.blake2b(f"{node_id}/{role}".encode(), digest_size=8).digest())


def preferred(role: str, agents: Iterable[AgentImage]) -> AgentImage | None:
    """The agent with the highest score; None when there is no agent."""
    return max(agents, key=lambda agent: (score(agent.node_id, role), agent.node_id), default=None)


class Routes:
    """The decisions that follow from one image; each is made when it is first asked for."""

    def __init__(self, image: MetadataImage, commit_shards: int) -> None:
        self.image = image
        self._live = image.live_agents()
        self._zones = {agent.rack for agent in self._live}
        self._commit_shards = commit_shards
        self._shard_leaders: dict[tuple[int, str | None], AgentImage | None] = {}

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        """The agent for the partition's commit shard: of the zone if it has a live one, else of all."""
        chosen = (commit_shard(partition_key, self._commit_shards), zone if zone in self._zones else None)
        if chosen not in self._shard_leaders:
            self._shard_leaders[chosen] = self._elect(*chosen)
        return self._shard_leaders[chosen]

    def coordinator(self, group_id: str) -> AgentImage | None:
        """The agent for the group; zones play no part, so that all members meet."""
        return preferred(group_role(group_id), self._live)

    def _elect(self, shard: int, zone: str | None) -> AgentImage | None:
        return preferred(shard_role(shard), (agent for agent in self._live if zone is None or agent.rack == zone))
