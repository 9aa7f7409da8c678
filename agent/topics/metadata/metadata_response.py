"""Renders agents, topics and partitions in the fields of one version of the Metadata response.

Place: under metadata.py; pure rendering of one image for one client zone.
Invariant: a partition's replicas are the agents that a reassignment prefers, with its leader, or as many as its topic's
replication factor (shown_replicas.py): the object store replicates, any agent serves, and clients should use the
leader.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.access import FULL_ACCESS, Access
from headrace.agent.access.authorization.operations import NOT_ASKED, AclOperation, AclResource
from headrace.agent.cluster.view import ClusterView
from headrace.agent.topics.metadata.describe_cluster import controller_id
from headrace.agent.topics.metadata.shown_replicas import shown_replicas
from headrace.config.node_ids import STORE_REPLICAS, VIRTUAL_NODE_ID
from headrace.metastore.log.image import AgentImage, MetadataImage, TopicImage
from headrace.metastore.log.replica_counts import is_agent
from headrace.metastore.segment_logs.rendered_topics import rendered_topic
from headrace.protocol.typed import Schema


@dataclass(frozen=True, slots=True)
class TopicError:
    """A topic that cannot be described; with the name or id of the request."""

    name: str | None
    topic_id: uuid.UUID | None
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class MetadataRendering:
    """One image for the clients of one zone."""

    cluster: ClusterView
    schema: Schema
    image: MetadataImage
    zone: str | None
    listener: str
    """The listener on which the request came in: clients are sent to the agents' addresses of the same listener
    (KIP-103).
    """
    virtual: AgentImage | None
    """The node that clients see instead of the agents (agent/cluster/shared_address.py)."""
    topic_operations: bool
    cluster_operations: bool
    access: Access = FULL_ACCESS
    """What the client may do."""
    _nodes: list[int] = field(init=False)
    """Node ids of the agents that the client sees, ascending."""

    def __post_init__(self) -> None:
        agents = self.image.live_agents() if self.virtual is None else [self.virtual]
        object.__setattr__(self, "_nodes", sorted(agent.node_id for agent in agents))

    def response(self, topics: list[TopicImage | TopicError]) -> Any:
        """The response entity."""
        agents = self.image.live_agents() if self.virtual is None else [self.virtual]
        brokers = tuple(
            self.schema.make("MetadataResponseBroker", node_id=a.node_id, host=e.host, port=e.port, rack=a.rack)
            for a, e in ((agent, agent.endpoint(self.listener)) for agent in agents)
        )
        return self.schema.response(
            brokers=brokers,
            cluster_id=self.cluster.cluster_id,
            controller_id=controller_id(self.image) if self.virtual is None else self.virtual.node_id,
            topics=tuple(self._error(t) if isinstance(t, TopicError) else self._topic(t) for t in topics),
            cluster_authorized_operations=self._of_cluster() if self.cluster_operations else NOT_ASKED,
            error_code=ErrorCode.none,
        )

    def operations(self, topic: TopicImage) -> int:
        """Return what the client may do with the topic."""
        return self.access.operations(AclResource.TOPIC, topic.name)

    def _of_cluster(self) -> int:
        may_describe = self.access.allows(AclOperation.DESCRIBE, AclResource.CLUSTER)
        return self.access.operations(AclResource.CLUSTER) if may_describe else 0

    def _error(self, topic: TopicError) -> Any:
        no_name = None if self.schema.version >= 12 else ""
        return self.schema.make(
            "MetadataResponseTopic",
            error_code=topic.code,
            name=no_name if topic.name is None else topic.name,
            topic_id=topic.topic_id,
            is_internal=False,
            partitions=(),
        )

    def _topic(self, topic: TopicImage) -> Any:
        return self.schema.make(
            "MetadataResponseTopic",
            error_code=ErrorCode.none,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=rendered_topic(topic.name) is not None,
            partitions=tuple(self.partition(topic, index) for index in topic.listed),
            topic_authorized_operations=self.operations(topic) if self.topic_operations else NOT_ASKED,
        )

    def partition(self, topic: TopicImage, index: int, kind: str = "MetadataResponsePartition") -> Any:
        """One partition. Its data has no replicas that could lag, so only the in-sync replicas are eligible."""
        key = topic.key(index)
        assert key is not None
        leader = self.cluster.leader(key, self.zone)
        if self.virtual is not None and leader is not None:
            leader = self.virtual
        replicas = self._replicas(topic, index, leader)
        offline = tuple(node_id for node_id in replicas if not self._is_live(node_id))
        return self.schema.make(
            kind,
            error_code=ErrorCode.leader_not_available if leader is None else ErrorCode.none,
            partition_index=index,
            leader_id=-1 if leader is None else leader.node_id,
            leader_epoch=topic.leader_epochs[index],
            replica_nodes=replicas,
            isr_nodes=tuple(node_id for node_id in replicas if node_id not in offline),
            offline_replicas=offline,
            eligible_leader_replicas=(),
            last_known_elr=(),
        )

    def _replicas(self, topic: TopicImage, index: int, leader: AgentImage | None) -> tuple[int, ...]:
        """The preferred agents, as reassignment tools expect, and the leader if it is another agent."""
        assigned = topic.assignment(index).replicas
        if self.virtual is not None:
            return shown_replicas(len(assigned) or topic.replication_factor, self.virtual.node_id, self._nodes)
        if not any(map(is_agent, assigned)):
            leads = None if leader is None else leader.node_id
            return shown_replicas(len(assigned) or topic.replication_factor, leads, self._nodes)
        assigned = tuple(node_id for node_id in assigned if node_id != VIRTUAL_NODE_ID)
        return assigned if leader is None or leader.node_id in assigned else (leader.node_id, *assigned)

    def _is_live(self, node_id: int) -> bool:
        if node_id in STORE_REPLICAS:
            return True
        agent = self.image.agents.get(node_id) if self.virtual is None else self.virtual
        return agent is not None and agent.live
