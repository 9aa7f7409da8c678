"""Agents as the cluster knows them: registration, lease, controlled shutdown.

Place: agent/cluster/membership.py, from an agent's start to its stop.
Invariant: a broker epoch names one registration and is higher than any before.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple


class FeatureRange(NamedTuple):
    """The levels of a feature, both ends included: those an agent supports, or those a cluster uses."""

    min_level: int
    max_level: int


METADATA_FORMAT = "metadata.format"
"""The feature that says which records may be written (metastore/log/features.py)."""


SHARED_ADDRESS = "shared.address"
"""An agent with this feature forwards requests to other agents (agent/cluster/shared_address.py). It has no
level in the cluster: each agent looks which others have it."""
PROVEN_LINKS = 2
"""The level of SHARED_ADDRESS from which on an agent proves the links that it opens
(agent/peers/forwarding/wire.py)."""

SEGMENT_KEYS = "remote.log.metadata.compaction"
"""The feature of the lifecycle of remote segments: at level 1 every merged file has keys (decisions/0046). Its level
only rises."""

SEALED_SECRETS = "metadata.secrets"
"""The feature of agents that have metadata.secret.keys: at level 1 the cluster's secrets are sealed (decisions/0058).
Its level only rises, and no cluster has it before `headrace storage seal-secrets`."""

COMMIT_SHARDS = "commit.shards"
"""The feature of agents that follow the feed while the count of commit shards grows (decisions/0077). Its level is the
count, and only rises; a cluster has it since its count grew."""
COMMIT_SHARDS_MAX = 1024

LEADER_SPREAD = "leader.spread"
"""The feature of agents that can deal a topic's leaders evenly (decisions/0078). Its level is how many tenths of the
topics are dealt so; without it, leaders follow commit shards."""
LEADER_FEATURES = (COMMIT_SHARDS, LEADER_SPREAD)
"""The features with levels from which leaders follow."""

TRANSACTION_VERSION = "transaction.version"
"""Kafka's feature: from level 1 on there are transactions, from 2 on with another epoch for each (KIP-890). Below 1 no
agent begins one, so that none is read by an agent that does not know them (decisions/0060)."""

TOPIC_TABLES = "topic.tables"
"""The feature of agents that know the topic configs `table.*` (decisions/0085). Without it a topic cannot get them; its
level goes down once no topic has any."""

SHARE_VERSION = "share.version"
"""Kafka's feature: at level 1 there are share groups. Below it no agent acquires a record, as another one may not know
what that means (decisions/0086). Its level only rises."""

STREAMS_VERSION = "streams.version"
"""Kafka's feature: at level 1 there are streams groups. Below it no agent makes one, as another one could not continue
it (decisions/0113). Its level only rises."""

LOW_LATENCY = "low.latency"
"""The feature of agents that read inline files (decisions/0109). At level 1 topics may have low.latency.enable; its
level only rises, as older agents look for an inline file's bytes in the bucket."""

CLUSTER_LINKS = "cluster.links"
"""The feature of agents that know linked topics (decisions/0110). At level 1 there may be links; its level only rises,
as older agents would take records for copies."""

SUPPORTED_FEATURES: Mapping[str, FeatureRange] = MappingProxyType(
    {
        METADATA_FORMAT: FeatureRange(1, 4),
        SEGMENT_KEYS: FeatureRange(1, 1),
        TRANSACTION_VERSION: FeatureRange(0, 2),
        TOPIC_TABLES: FeatureRange(1, 1),
        SHARE_VERSION: FeatureRange(0, 1),
        STREAMS_VERSION: FeatureRange(0, 1),
        LOW_LATENCY: FeatureRange(1, 1),
        CLUSTER_LINKS: FeatureRange(1, 1),
    }
)
"""What this version of the software supports, of the features that a cluster can use at a level. A new cluster has the
highest levels."""

OPTIONAL_FEATURES: Mapping[str, FeatureRange] = MappingProxyType(
    {SEALED_SECRETS: FeatureRange(1, 1), COMMIT_SHARDS: FeatureRange(1, COMMIT_SHARDS_MAX)}
)
"""What it supports, too, the first one if its settings say so; a new cluster does not have them, and commands of
`headrace storage` raise their levels."""

CHOSEN_FEATURES: Mapping[str, FeatureRange] = MappingProxyType({LEADER_SPREAD: FeatureRange(1, 10)})
"""What it supports, too, and an operator may choose at any time; a new cluster does not have them."""

KAFKA_FEATURES: Mapping[str, FeatureRange] = MappingProxyType(
    {"group.version": FeatureRange(1, 1), "metadata.version": FeatureRange(27, 27)}
)
"""Features of Kafka at the only level that there is here, for its tools: groups of KIP-848 are always served, and
metadata.version is that of Kafka 4.1. No agent registers with them."""

AGENT_FEATURES: Mapping[str, FeatureRange] = MappingProxyType(
    {
        **SUPPORTED_FEATURES,
        **CHOSEN_FEATURES,
        COMMIT_SHARDS: OPTIONAL_FEATURES[COMMIT_SHARDS],
        SHARED_ADDRESS: FeatureRange(1, PROVEN_LINKS),
    }
)
"""What every agent registers with."""


def agent_features(*, has_secret_keys: bool) -> Mapping[str, FeatureRange]:
    """Return what an agent with or without metadata.secret.keys registers with: without, no cluster with sealed
    secrets.
    """
    return {**AGENT_FEATURES, **OPTIONAL_FEATURES} if has_secret_keys else AGENT_FEATURES


class Listener(NamedTuple):
    """Address of an agent. `security_protocol`: Kafka's number, 0 is PLAINTEXT."""

    name: str
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True)
class AgentRegistration:
    """What an agent reports when it starts. `node_id` None asks for a leased one (C16)."""

    node_id: int | None
    incarnation_id: uuid.UUID
    host: str
    port: int
    """The port of the listener that clients are sent to."""
    rack: str | None
    cluster_id: str | None = None
    """Refused when it is another cluster's; None where the caller took it from this very metastore."""
    features: Mapping[str, FeatureRange] = field(default_factory=lambda: AGENT_FEATURES)
    listeners: tuple[Listener, ...] = ()
    """All of them, the one of `host` and `port` first; none: that one alone, PLAINTEXT."""


class RegisteredAgent(NamedTuple):
    node_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What the cluster knows of the agent after its heartbeat."""

    is_caught_up: bool
    """It has applied its own registration and is no more than metadata.max.lag.records behind the head."""
    is_fenced: bool
    should_shut_down: bool
    """It asked for a controlled shutdown, and every other live agent follows a log that says so."""
    metadata_head: int
    """The next offset of the metadata log."""
    controller_id: int
    """The active controller's node id; -1 while there is none."""
    session_timeout_ms: int
    """The length of the lease that was granted, from when this heartbeat was sent."""
    record_before: bytes | None
    """The framed record before `metadata_offset`; None if the log has none there."""
