"""DescribeQuorum (key 55, versions 0-2): the leader and the observers of the metadata log.

Place: answered from the metastore's controller lease, the agents' leases and this agent's image.
Invariant: the leader is the active controller and the only voter in the answer: Postgres replaces the other voters.
Agents are observers, also fenced ones, with the state of their last heartbeats.
Source: KIP-595, KIP-836 (times), KIP-853 (nodes).
"""

from __future__ import annotations

from collections import Counter

from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest
from kio.schema.describe_quorum.v2.response import Listener, Node, PartitionData, ReplicaState, TopicData
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.controller import ControllerLease
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.reports import AgentLease
from headrace.metastore.log.metadata_topic import METADATA_TOPIC
from headrace.protocol.errors import error_code
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

NEVER = -1
_NOBODY = ControllerLease(-1, 0, False)


class DescribeQuorum:
    """Answer DescribeQuorum as if the controllers were the voters of the metadata log."""

    def __init__(self, cluster: ClusterView, api: Metastore) -> None:
        self._cluster = cluster
        self._api = api

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DescribeQuorumRequest)
        try:
            lease = await self._api.controller.describe_controller() or _NOBODY
            agents = await self._api.reports.agent_leases()
            await self._cluster.catch_up()
        except HeadraceError as error:
            code = ErrorCode(error_code(error))
            return reply(request, schema.response(error_code=code, error_message=str(error), topics=(), nodes=()))
        times = Counter[tuple[str, int]](
            (topic.topic_name, p.partition_index) for topic in entity.topics for p in topic.partitions
        )
        topics = tuple(
            schema.make(
                TopicData,
                topic_name=topic.topic_name,
                partitions=tuple(
                    self._partition(schema, topic.topic_name, p.partition_index, lease, agents, times)
                    for p in topic.partitions
                ),
            )
            for topic in entity.topics
        )
        nodes = self._nodes(schema, lease)
        return reply(
            request, schema.response(error_code=ErrorCode.none, error_message=None, topics=topics, nodes=nodes)
        )

    def _partition(
        self,
        schema: Schema,
        topic: str,
        index: int,
        lease: ControllerLease,
        agents: list[AgentLease],
        times: Counter[tuple[str, int]],
    ) -> PartitionData:
        """`times`: how often the request names each partition; only a unique one gets the list of agents."""
        image = self._cluster.image
        is_quorum = topic == METADATA_TOPIC and index == 0
        known = is_quorum and times[topic, index] == 1
        observers = tuple(
            _replica(schema, agent, image.offset) for agent in agents if known and agent.node_id != lease.controller_id
        )
        leader = AgentLease(lease.controller_id, image.offset, NEVER)
        voters = () if lease is _NOBODY else (_replica(schema, leader, image.offset),)
        code, message = ErrorCode.none, None
        if is_quorum and not known:
            code, message = ErrorCode.invalid_request, "duplicate partition"
        elif not known:
            code, message = ErrorCode.unknown_topic_or_partition, f"only {METADATA_TOPIC}-0 has a quorum"
        return schema.make(
            PartitionData,
            partition_index=index,
            error_code=code,
            error_message=message,
            leader_id=lease.controller_id if known else -1,
            leader_epoch=lease.controller_epoch if known else -1,
            high_watermark=image.offset if known else -1,
            current_voters=voters if known else (),
            observers=observers,
        )

    def _nodes(self, schema: Schema, lease: ControllerLease) -> tuple[Node, ...]:
        """Return the nodes, from version 2 on: the controller's addresses, if it is also an agent."""
        agent = self._cluster.image.agents.get(lease.controller_id)
        if schema.version < 2 or agent is None:
            return ()
        found = agent.listeners or (agent.endpoint(None),)
        listeners = tuple(schema.make(Listener, name=e.name, host=e.host, port=e.port) for e in found)
        return (schema.make(Node, node_id=agent.node_id, listeners=listeners),)


def _replica(schema: Schema, agent: AgentLease, high_watermark: int) -> ReplicaState:
    """The last fetch time is the last heartbeat; the time at which it was last caught up is unknown."""
    caught_up = agent.metadata_offset >= high_watermark
    return schema.make(
        ReplicaState,
        replica_id=agent.node_id,
        replica_directory_id=None,
        log_end_offset=agent.metadata_offset,
        last_fetch_timestamp=agent.last_contact_ms,
        last_caught_up_timestamp=agent.last_contact_ms if caught_up else NEVER,
    )
