"""Renders agents, topics, partitions in the fields of one version of the Metadata response.

Place: under metadata.py and described_topics.py; rendering of one image for one client zone. CountsOfTopics is what
the response says about partition counts to clients that ask for it; protocol/partition_counts.py has the bytes.
Definitions: the object store has the copies, so a replica is no copy of data. A partition that was reassigned, or
created with an assignment, shows the agents that it prefers. Any other shows as many replicas as its topic's
replication factor: its leader, the agents that follow by node id, and, if there are too few agents, replicas of the
object store.
Invariant: all comes from `routes` and its image, never from the newest image: other tasks run between two topics.
For the same factor the number of replicas is the same with any number of agents, because tools compare it with what
they asked for (Terraform, Strimzi's topic operator). Replicas of the object store are in sync, so nothing that
watches for partitions with too few replicas is alarmed; no broker has their ids, as with a broker of Kafka that is
stopped.
Source: KIP-253, protocol change 7; the two flags spare clients a request for configs.
"""

from __future__ import annotations

import bisect
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from kio.schema.describe_topic_partitions.v0.response import DescribeTopicPartitionsResponsePartition
from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.access import FULL_ACCESS, Access
from headrace.agent.access.authorization.operations import NOT_ASKED, SUPPORTED, AclOperation, AclResource
from headrace.agent.cluster.routing import Routes
from headrace.agent.limits.work_slices import BLOCK, TOPIC_UNITS, WorkSlices
from headrace.agent.topics.metadata.routing_requests import controller_id
from headrace.config.bounds import STORE_REPLICAS, VIRTUAL_NODE_ID
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import AgentImage, MetadataImage, TopicImage
from headrace.metastore.log.shown_counts import SHOWN_REPLICAS_MAX, initial_count, is_agent, undeleted_count
from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.protocol import metadata_codec as codec
from headrace.protocol.partition_counts import TopicCounts
from headrace.protocol.typed import Schema


def shown_replicas(factor: int, leader: int | None, nodes: Sequence[int]) -> tuple[int, ...]:
    """Return the node ids, the leader first. `nodes`: those of the agents that clients see, ascending."""
    count = min(factor, SHOWN_REPLICAS_MAX)
    if leader is None:
        return tuple(STORE_REPLICAS[:count]) if count > 1 else ()
    if count == 1:
        return (leader,)
    after = bisect.bisect_right(nodes, leader)
    agents = [leader, *(node for node in (*nodes[after:], *nodes[:after]) if node != leader)][:count]
    return (*agents, *STORE_REPLICAS[: count - len(agents)])


class CountsOfTopics:
    """Counts of partitions and replicas by the configs in effect."""

    def __init__(self, configs: EffectiveConfigs) -> None:
        self._configs = configs

    def __call__(self, image: MetadataImage, topic: TopicImage) -> TopicCounts:
        is_stored = rendered_topic(topic.name) is None
        return TopicCounts(
            topic.topic_id,
            initial_count(topic),
            undeleted_count(topic),
            tuple(topic.marked),
            is_ordered=is_stored and self._value(image, topic, "enable.ordered.delivery").lower() == "true",
            is_compacted=is_stored and "compact" in self._value(image, topic, "cleanup.policy"),
        )

    def _value(self, image: MetadataImage, topic: TopicImage, name: str) -> str:
        return self._configs.topic_value(image, topic.name, name)


_NO_LEADER = int(ErrorCode.leader_not_available)


@dataclass(frozen=True, slots=True)
class TopicError:
    """A topic that cannot be described; with the name or id of the request."""

    name: str | None
    topic_id: uuid.UUID | None
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class MetadataRendering:
    """One image for the clients of one zone."""

    routes: Routes
    schema: Schema
    cluster_id: str
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
    _nodes: Sequence[int] = field(init=False)
    """Node ids of the agents that the client sees, ascending."""
    _ends: dict[tuple[int | None, int], bytes] = field(default_factory=dict, init=False)
    """The replicas of partitions without preferred agents, by leader and replication factor."""

    def __post_init__(self) -> None:
        nodes = self.routes.live_node_ids if self.virtual is None else [self.virtual.node_id]
        object.__setattr__(self, "_nodes", nodes)

    @property
    def image(self) -> MetadataImage:
        """The image that is shown."""
        return self.routes.image

    def agents(self) -> bytes:
        """Return the response up to its list of topics."""
        agents = self.routes.live_agents if self.virtual is None else [self.virtual]
        endpoints = [(agent, agent.endpoint(self.listener)) for agent in agents]
        return codec.response_begin(
            self.schema.version,
            [(agent.node_id, at.host, at.port, agent.rack) for agent, at in endpoints],
            self.cluster_id,
            controller_id(self.routes) if self.virtual is None else self.virtual.node_id,
        )

    def end(self) -> bytes:
        """Return what follows the list of topics."""
        return codec.response_end(self.schema.version, self._of_cluster() if self.cluster_operations else NOT_ASKED)

    def operations(self, topic: TopicImage) -> int:
        """Return what the client may do with the topic."""
        return self.access.operations(AclResource.TOPIC, topic.name)

    def _of_cluster(self) -> int:
        may_describe = self.access.allows(AclOperation.DESCRIBE, AclResource.CLUSTER)
        return self.access.operations(AclResource.CLUSTER) if may_describe else 0

    def error(self, topic: TopicError) -> bytes:
        """Return the bytes of a topic that is not described."""
        no_name = None if self.schema.version >= 12 else ""
        name = no_name if topic.name is None else topic.name
        code = int(topic.code)
        return codec.topic(
            self.schema.version, code, name, topic.topic_id, 0, (), is_internal=False, operations=NOT_ASKED
        )

    async def topic(self, topic: TopicImage, slices: WorkSlices) -> bytes:
        """Return the bytes of a topic."""
        for cost in self.routes.steps(topic, self.zone):
            await slices.did(cost)
        leaders, listed = self.routes.leaders(topic, self.zone), topic.listed
        parts = []
        for first in range(0, len(listed), BLOCK):
            block = listed[first : first + BLOCK]
            parts.append(self._partitions(topic, leaders, block))
            await slices.did(len(block))
        await slices.did(TOPIC_UNITS * (1 + self._decisions()))
        return codec.topic(
            self.schema.version,
            0,
            topic.name,
            topic.topic_id,
            len(listed),
            parts,
            is_internal=rendered_topic(topic.name) is not None,
            operations=self.operations(topic) if self.topic_operations else NOT_ASKED,
        )

    def _decisions(self) -> int:
        """Return how many decisions of ACLs a topic needs."""
        return len(SUPPORTED[AclResource.TOPIC]) if self.topic_operations and not self.access.is_full else 0

    def _partitions(self, topic: TopicImage, leaders: Sequence[AgentImage | None], indexes: Sequence[int]) -> bytes:
        shown = []
        for index in indexes:
            leader = self._shown_leader(leaders[index])
            node_id = None if leader is None else leader.node_id
            if index in topic.assignments:
                end = self._end(self._replicas(topic, index, leader))
            else:
                kind = node_id, topic.replication_factor
                if kind not in self._ends:
                    self._ends[kind] = self._end(self._replicas(topic, index, leader))
                end = self._ends[kind]
            error, leads = (_NO_LEADER, -1) if node_id is None else (0, node_id)
            shown.append((error, index, leads, topic.leader_epochs[index], end))
        return codec.partitions(self.schema.version, shown)

    def _end(self, replicas: tuple[int, ...]) -> bytes:
        return codec.replicas(self.schema.version, replicas, *self._by_state(replicas))

    def partition(self, topic: TopicImage, index: int) -> DescribeTopicPartitionsResponsePartition:
        """One partition. Its data has no replicas that could lag, so only the in-sync replicas are eligible."""
        key = topic.key(index)
        assert key is not None
        leader = self._shown_leader(self.routes.leader(key, self.zone))
        replicas = self._replicas(topic, index, leader)
        in_sync, offline = self._by_state(replicas)
        return self.schema.make(
            DescribeTopicPartitionsResponsePartition,
            error_code=ErrorCode.leader_not_available if leader is None else ErrorCode.none,
            partition_index=index,
            leader_id=-1 if leader is None else leader.node_id,
            leader_epoch=topic.leader_epochs[index],
            replica_nodes=replicas,
            isr_nodes=in_sync,
            offline_replicas=offline,
            eligible_leader_replicas=(),
            last_known_elr=(),
        )

    def _shown_leader(self, leader: AgentImage | None) -> AgentImage | None:
        return leader if self.virtual is None or leader is None else self.virtual

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

    def _by_state(self, replicas: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the replicas that are in sync, and those that are offline."""
        offline = tuple(node_id for node_id in replicas if not self._is_live(node_id))
        return tuple(node_id for node_id in replicas if node_id not in offline), offline

    def _is_live(self, node_id: int) -> bool:
        if node_id in STORE_REPLICAS:
            return True
        agent = self.image.agents.get(node_id) if self.virtual is None else self.virtual
        return agent is not None and agent.live
