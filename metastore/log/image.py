"""The metadata image: an agent's in-memory state, built from the metadata log.

Place: every request that names a topic, partition or agent is answered from it, without a query.
Invariant: an image is immutable and belongs to exactly one log offset; applying the same records
always gives the same image. If the process dies, the next one reads the log again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from metastore.keys import partition_key


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic. `leader_epochs[i]` belongs to partition i."""

    topic_id: uuid.UUID
    topic_number: int
    name: str
    initial_partition_count: int
    undeleted_partition_count: int
    leader_epochs: tuple[int, ...]

    def key(self, partition_index: int) -> int | None:
        """The partition's key; None when there is no such partition."""
        if 0 <= partition_index < len(self.leader_epochs):
            return partition_key(self.topic_number, partition_index)
        return None


@dataclass(frozen=True, slots=True)
class AgentImage:
    """One registered agent; clients see it only while it is unfenced."""

    node_id: int
    broker_epoch: int
    incarnation_id: uuid.UUID
    host: str
    port: int
    rack: str | None
    fenced: bool


def _empty() -> Any:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The cluster as of `offset`: every record below it is applied."""

    offset: int = 0
    topics_by_name: Mapping[str, TopicImage] = field(default_factory=_empty)
    topics_by_id: Mapping[uuid.UUID, TopicImage] = field(default_factory=_empty)
    topics_by_number: Mapping[int, TopicImage] = field(default_factory=_empty)
    agents: Mapping[int, AgentImage] = field(default_factory=_empty)
    configs: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=_empty)
    """(ConfigResource type, resource name) -> name -> value."""

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """The settings that were given to the topic itself."""
        return self.configs.get((2, name), MappingProxyType({}))

    def live_agents(self) -> list[AgentImage]:
        """Unfenced agents by node id."""
        return sorted((a for a in self.agents.values() if not a.fenced), key=lambda a: a.node_id)
