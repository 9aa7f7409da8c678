"""What the overview shows of the cluster, by the Kafka protocol: brokers, quorum, features.

Place: under pages/overview.py; the metastore adds states and leases, if it is known.
Invariant: an API that the cluster does not serve leaves its part empty; Kafka's brokers serve all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.metastore.log.metadata_topic import METADATA_TOPIC
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, require
from headrace.storage.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class AgentRow:
    """One registered agent. `state` is live, fenced, leaving or hidden; `lag` in records of the metadata log."""

    node_id: int
    host: str
    port: int
    zone: str
    state: str
    format: str = ""
    lag: int | None = None
    silent_ms: int | None = None


class QuorumMember(NamedTuple):
    """A voter or an observer of the metadata log."""

    node_id: int
    role: str
    end_offset: int
    lag: int


@dataclass(frozen=True, slots=True)
class Quorum:
    """Quorum of the metadata log. `leader` is the active controller, -1: none."""

    leader: int
    epoch: int
    high_watermark: int
    members: list[QuorumMember] = field(default_factory=list)


class FeatureRow(NamedTuple):
    """A feature: the level that the cluster uses (None: none), and those that the answering agent supports."""

    name: str
    level: int | None
    supported: str


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """Summary of the cluster, as one broker sees it."""

    cluster_id: str
    agents: list[AgentRow]
    quorum: Quorum | None
    features: list[FeatureRow]
    topics: int
    partitions: int
    without_leader: list[str]
    """`topic:partition` of each."""


def read_cluster(cluster: KafkaCluster) -> ClusterSummary:
    """Errors as `require`."""
    m = cluster.message(ApiKey.DESCRIBE_CLUSTER)
    request = m.request(include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=True)
    answer = cluster.ask(ApiKey.DESCRIBE_CLUSTER, request)
    require(answer.error_code, answer.error_message)
    agents = [
        AgentRow(
            int(broker.broker_id),
            broker.host,
            int(broker.port),
            broker.rack or "",
            "fenced" if getattr(broker, "is_fenced", False) else "live",
        )
        for broker in sorted(answer.brokers, key=lambda broker: int(broker.broker_id))
    ]
    topics = cluster.metadata()
    without = [
        f"{topic.name}:{partition.partition_index}"
        for topic in topics
        for partition in topic.partitions
        if partition.leader_id < 0
    ]
    partitions = sum(len(topic.partitions) for topic in topics)
    return ClusterSummary(
        answer.cluster_id, agents, _quorum(cluster), _features(cluster), len(topics), partitions, without
    )


def _quorum(cluster: KafkaCluster) -> Quorum | None:
    """Return None if the cluster has no such API, or this client may not ask."""
    if not cluster.serves(ApiKey.DESCRIBE_QUORUM):
        return None
    m = cluster.message(ApiKey.DESCRIBE_QUORUM)
    log = m.make("TopicData", topic_name=METADATA_TOPIC, partitions=(m.make("PartitionData", partition_index=0),))
    try:
        answer = cluster.ask(ApiKey.DESCRIBE_QUORUM, m.request(topics=(log,)))
    except HeadraceError:
        return None
    if answer.error_code is not ErrorCode.none or not answer.topics:
        return None
    (partition,) = answer.topics[0].partitions
    members = [
        QuorumMember(
            int(member.replica_id),
            role,
            int(member.log_end_offset),
            max(int(partition.high_watermark) - int(member.log_end_offset), 0),
        )
        for role, group in (("voter", partition.current_voters), ("observer", partition.observers))
        for member in group
    ]
    return Quorum(int(partition.leader_id), int(partition.leader_epoch), int(partition.high_watermark), members)


def _features(cluster: KafkaCluster) -> list[FeatureRow]:
    if not cluster.serves(ApiKey.API_VERSIONS):
        return []
    m = cluster.message(ApiKey.API_VERSIONS)
    answer = cluster.ask(
        ApiKey.API_VERSIONS, m.request(client_software_name="headrace-console", client_software_version="1")
    )
    levels = {feature.name: int(feature.max_version_level) for feature in answer.finalized_features}
    ranges = {feature.name: f"{feature.min_version} to {feature.max_version}" for feature in answer.supported_features}
    return [FeatureRow(name, levels.get(name), ranges.get(name, "")) for name in sorted({*levels, *ranges})]
