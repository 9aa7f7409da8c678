"""The metadata image: an agent's in-memory state, built from the metadata log.

Place: every request that names a topic, partition or agent is answered from it, without a query.
Invariant: an image is immutable and belongs to exactly one log offset; metastore/log/replay.py is the
only one that makes the next from it, metastore/log/snapshot.py the only one that describes it in records.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from headrace.config.link_configs import LINK_NAME, LINK_RESOURCE
from headrace.metastore.api.agents import (
    CLUSTER_LINKS,
    COMMIT_SHARDS,
    LEADER_SPREAD,
    LOW_LATENCY,
    METADATA_FORMAT,
    SHARE_VERSION,
    STREAMS_VERSION,
    TOPIC_TABLES,
    TRANSACTION_VERSION,
    FeatureRange,
    Listener,
)
from headrace.metastore.keys import partition_key
from headrace.metastore.log.kip631_records import (
    TOPIC_RESOURCE,
    AccessControlRecord,
    CredentialInfo,
    DelegationTokenRecord,
    EntityData,
)
from headrace.metastore.log.own_records import ScramKeys
from headrace.metastore.partitions.topic_partitions import CreatedFrom, OrderedPartition, Split, TopicPartitions

OLDEST_METADATA_FORMAT = 1
"""The metadata format of a log that says nothing about it."""


def _empty() -> Any:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Assignment:
    """Agents that are preferred for a partition, best first; node ids.

    While a reassignment is under way `replicas` are the wanted ones, then those that go; `adding` and
    `removing` say which of them come and go (KIP-455).
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def preferred(self) -> tuple[int, ...]:
        """Return who leads now: the added ones only once the reassignment is complete."""
        return tuple(node_id for node_id in self.replicas if node_id not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """Return who leads once it is complete."""
        return tuple(node_id for node_id in self.replicas if node_id not in self.removing)

    @property
    def under_way(self) -> bool:
        """Whether a reassignment waits for agents."""
        return bool(self.adding or self.removing)


ANYBODY = Assignment(())
"""No agent is preferred: what a partition has unless it was reassigned."""


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic. `leader_epochs[i]` belongs to partition i; those of removed partitions are kept."""

    topic_id: uuid.UUID
    topic_number: int
    name: str
    initial_partition_count: int
    """This and the next are -1 where the writer of the TopicRecord did not state them."""
    undeleted_partition_count: int
    leader_epochs: tuple[int, ...]
    assignments: Mapping[int, Assignment] = field(default_factory=_empty)
    """The assignments by partition index; those without preferred agents are left out."""
    created_from: Mapping[int, CreatedFrom] = field(default_factory=_empty)
    """The parents of partitions by index: those that an expansion created."""
    before_deletion: Mapping[int, Mapping[int, int]] = field(default_factory=_empty)
    """Marked partition -> each of its ancestors -> that one's leader epoch before it rose."""
    removed: frozenset[int] = frozenset()
    """Indexes of partitions that are gone; each may be used again."""
    splits: Mapping[int, Split] = field(default_factory=_empty)
    """The splits by partition index: those that the topic's doubling split in two."""
    doubling: int = -1
    """How many partitions the topic has soon, as was announced; -1: nothing was."""
    aliases: Mapping[int, int] = field(default_factory=_empty)
    """Partition that was halved away -> the one that gets what comes for it."""
    halving: int = -1
    """How many partitions the topic halves to; -1: it does not halve."""
    replication_factor: int = 1
    """What was asked for when the topic was created: shown to clients, and without any other effect."""
    moved_at: int = field(default=0, compare=False)
    """The end of the log at the last change after which one of its partitions may have another leader, in any zone; it
    may be later, as in an image from a snapshot. 0: none since the topic was created. See MetadataImage.moved_at."""

    @property
    def indexes(self) -> Sequence[int]:
        """Indexes of the partitions that exist, ascending."""
        every = range(len(self.leader_epochs))
        return tuple(index for index in every if index not in self.removed) if self.removed else every

    @property
    def listed(self) -> Sequence[int]:
        """Indexes of the partitions that Metadata shows, ascending: not of aliases once the lower count is shown."""
        if not self.aliases:
            return self.indexes
        return [index for index in self.indexes if index < self.undeleted_partition_count or index not in self.aliases]

    @property
    def unmerged(self) -> Sequence[int]:
        """Indexes of the partitions that exist and are no aliases, ascending."""
        return [index for index in self.indexes if index not in self.aliases] if self.aliases else self.indexes

    def moving_child(self, partition_index: int) -> int | None:
        """The child of which the commit needs to know whether a batch for the partition has one of its keys."""
        split = self.splits.get(partition_index)
        if split is not None:
            return split.child
        child = partition_index + self.halving
        return child if 0 <= self.halving <= child and self.aliases.get(child) == partition_index else None

    @property
    def marked(self) -> Sequence[int]:
        """The partitions that exist and take no new records, ascending."""
        return sorted(self.before_deletion)

    @property
    def partition_count(self) -> int:
        """How many partitions exist."""
        return len(self.leader_epochs) - len(self.removed)

    @property
    def ordered_partitions(self) -> TopicPartitions:
        """What changes of the count are planned from (metastore/partitions/changes.py)."""
        count = len(self.leader_epochs)
        partitions = tuple(
            OrderedPartition(
                epoch,
                self.created_from.get(i),
                self.before_deletion.get(i, MappingProxyType({})),
                is_removed=i in self.removed,
                is_alias=i in self.aliases,
            )
            for i, epoch in enumerate(self.leader_epochs)
        )
        if self.undeleted_partition_count < 0:
            return TopicPartitions(count, count, partitions)
        return TopicPartitions(
            self.initial_partition_count, self.undeleted_partition_count, partitions, self.halving >= 0
        )

    def has(self, partition_index: int) -> bool:
        """Return whether there is such a partition."""
        return 0 <= partition_index < len(self.leader_epochs) and partition_index not in self.removed

    def key(self, partition_index: int) -> int | None:
        """The partition's key; None when there is no such partition."""
        return partition_key(self.topic_number, partition_index) if self.has(partition_index) else None

    def assignment(self, partition_index: int) -> Assignment:
        """Return which agents are preferred for the partition."""
        return self.assignments.get(partition_index, ANYBODY)


@dataclass(frozen=True, slots=True)
class AgentImage:
    """One registered agent; clients see it only while it is live."""

    node_id: int
    broker_epoch: int
    incarnation_id: uuid.UUID
    host: str
    port: int
    rack: str | None
    fenced: bool
    leaving: bool = False
    """Whether the agent is in a controlled shutdown: clients are no longer sent to it, but it may still commit."""
    listeners: tuple[Listener, ...] = ()
    features: Mapping[str, FeatureRange] = field(default_factory=_empty)
    """The feature levels that the agent supports."""
    hidden: bool = False
    """The active controller found it gone: clients are no longer sent to it, but it is not fenced yet."""

    @property
    def live(self) -> bool:
        """Whether clients are sent to it."""
        return self.member and not self.hidden

    @property
    def member(self) -> bool:
        """Whether its lease counts: it may hold groups, also while clients do not reach it."""
        return not (self.fenced or self.leaving)

    def endpoint(self, name: str | None) -> Listener:
        """The address of its listener of that name; of its first one if it has none of that name, or for None."""
        for listener in self.listeners:
            if listener.name == name:
                return listener
        return self.listeners[0] if self.listeners else Listener("PLAINTEXT", self.host, self.port, 0)


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The cluster as of `offset`: every record below it is applied."""

    offset: int = 0
    topics_by_name: Mapping[str, TopicImage] = field(default_factory=_empty)
    topics_by_id: Mapping[uuid.UUID, TopicImage] = field(default_factory=_empty)
    topics_by_number: Mapping[int, TopicImage] = field(default_factory=_empty)
    agents: Mapping[int, AgentImage] = field(default_factory=_empty)
    unregistered: Mapping[int, int] = field(default_factory=_empty)
    """Node id -> last broker epoch of agents that are gone, in the order in which they went; the newest ones only."""
    deleted_names: Mapping[str, int] = field(default_factory=_empty, compare=False)
    """Name -> offset of its RemoveTopicRecord, of topics that were deleted and not created again, the newest last: as
    far as the process saw the log, for snapshots lack them."""
    configs: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=_empty)
    """(ConfigResource type, resource name) -> name -> value."""
    features: Mapping[str, FeatureRange] = field(default_factory=_empty)
    """The levels that the cluster uses."""
    access_controls: frozenset[AccessControlRecord] = frozenset()
    scram_credentials: Mapping[str, tuple[CredentialInfo | ScramKeys, ...]] = field(default_factory=_empty)
    """User name -> one credential per mechanism; salted passwords only below SCRAM_KEYS_FORMAT."""
    passwords_until: int = field(default=0, compare=False)
    """The log before this offset may have salted passwords, as far as the process saw it; 0: no part of it."""
    delegation_tokens: Mapping[str, DelegationTokenRecord] = field(default_factory=_empty)
    """The delegation tokens by token id."""
    quotas: Mapping[tuple[EntityData, ...], Mapping[str, float]] = field(default_factory=_empty)
    """Entity, its parts in order of their types -> key -> value."""
    failed_replicas: Mapping[int, Mapping[uuid.UUID, tuple[int, ...]]] = field(default_factory=_empty)
    """Node id -> topic id -> partitions."""
    moved_at: int = field(default=0, compare=False)
    """The same as TopicImage.moved_at, for all topics: the agents changed, or how leaders follow from them."""

    @property
    def metadata_format(self) -> int:
        """Return which records may be written (metastore/log/features.py)."""
        active = self.features.get(METADATA_FORMAT)
        return OLDEST_METADATA_FORMAT if active is None else active.max_level

    @property
    def transaction_version(self) -> int:
        """Kafka's feature of this name; 0: there are no transactions."""
        active = self.features.get(TRANSACTION_VERSION)
        return 0 if active is None else active.max_level

    @property
    def share_version(self) -> int:
        """Kafka's feature of this name; 0: there are no share groups."""
        active = self.features.get(SHARE_VERSION)
        return 0 if active is None else active.max_level

    @property
    def streams_version(self) -> int:
        """Kafka's feature of this name; 0: there are no streams groups."""
        active = self.features.get(STREAMS_VERSION)
        return active.max_level if active else 0

    def commit_shards(self, opened_with: int) -> int:
        """Return how many commit shards there are; `opened_with`: how many there were when the metastore was opened."""
        grown = self.features.get(COMMIT_SHARDS)
        return opened_with if grown is None else grown.max_level

    @property
    def leader_spread(self) -> int:
        """How many tenths of the topics have leaders that are dealt evenly; 0: leaders follow commit shards."""
        active = self.features.get(LEADER_SPREAD)
        return 0 if active is None else active.max_level

    @property
    def has_topic_tables(self) -> bool:
        """Whether topics can have the configs `table.*`."""
        return TOPIC_TABLES in self.features

    @property
    def has_low_latency(self) -> bool:
        """Whether there may be inline files."""
        return LOW_LATENCY in self.features

    @property
    def has_cluster_links(self) -> bool:
        """Whether there may be links."""
        return CLUSTER_LINKS in self.features

    @property
    def links(self) -> dict[str, Mapping[str, str]]:
        """The configs of each link, by name. O(resources with configs)."""
        return {name: values for (kind, name), values in self.configs.items() if kind == LINK_RESOURCE}

    def link_of(self, topic: str) -> str:
        """Return the link of which the topic is a copy; empty: of none."""
        return self.topic_configs(topic).get(LINK_NAME, "")

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """The settings that were given to the topic itself."""
        return self.configs.get((TOPIC_RESOURCE, name), MappingProxyType({}))

    def live_agents(self) -> list[AgentImage]:
        """The agents that clients are sent to, by node id."""
        return sorted((agent for agent in self.agents.values() if agent.live), key=lambda a: a.node_id)
