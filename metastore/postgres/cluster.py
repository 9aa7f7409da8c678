"""The metadata log and what is appended to it: topics and agents.

Place: admin requests, and every agent's registration and heartbeats; implements ClusterApi.
Invariant: each change is one call of one server-side function, which takes the log head's lock and
writes records and projection together: nobody sees one without the other (C1). Offsets that a
record carries are known before it is sent (topics: the expected head is fixed) or put in under the
lock (broker epochs).
If the process dies in mid-call, Postgres finishes it or rolls it back; both are whole.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from metastore.keys import PARTITION_BITS
from metastore.log.records import (
    TOPIC_RESOURCE,
    BrokerEndpoint,
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode_record,
)
from metastore.postgres.statement import Pool, Statement
from metastore.values import AgentRegistration, NewTopic, RegisteredAgent
from storage.errors import AlreadyExistsError, FencedError, InvalidError

PLAINTEXT = 0
"""SecurityProtocol of an endpoint."""

_METADATA_HEAD = Statement("metadata_head", writes=False)
_READ_METADATA = Statement("read_metadata", writes=False)
_CREATE_TOPICS = Statement("create_topics", writes=True)
_DELETE_TOPICS = Statement("delete_topics", writes=True)
_REGISTER_AGENT = Statement("register_agent", writes=True)
_HEARTBEAT = Statement("heartbeat", writes=True)
_UNREGISTER_AGENT = Statement("unregister_agent", writes=True)


async def metadata_head(pool: Pool) -> int:
    """The next offset of the log."""
    (head,) = await _METADATA_HEAD.row(pool)
    return int(head)


async def read_metadata(pool: Pool, start_offset: int, limit: int) -> list[bytes]:
    """Up to `limit` framed records from `start_offset` on."""
    rows = await _READ_METADATA.rows(pool, start_offset=start_offset, record_count=limit)
    return [record for (record,) in rows]


async def create_topics(pool: Pool, expected_head: int, topics: Sequence[NewTopic]) -> bool:
    """False when the head is not `expected_head`; AlreadyExistsError for a name or id that is taken."""
    records: list[MetadataRecord] = []
    numbers: list[int] = []
    for topic in topics:
        if not 1 <= topic.partition_count <= 1 << PARTITION_BITS:
            raise InvalidError(f"partition count out of range: topic={topic.name} count={topic.partition_count}")
        numbers.append(expected_head + len(records))
        records += _topic_records(topic)
    configs = [(topic.name, name, value) for topic in topics for name, value in topic.configs.items()]
    (created,) = await _CREATE_TOPICS.row(
        pool,
        expected_head=expected_head,
        records=[encode_record(record) for record in records],
        topic_ids=[topic.topic_id for topic in topics],
        topic_numbers=numbers,
        names=[topic.name for topic in topics],
        counts=[topic.partition_count for topic in topics],
        config_topics=[topic for topic, _, _ in configs],
        config_names=[name for _, name, _ in configs],
        config_values=[value for _, _, value in configs],
    )
    return bool(created)


async def delete_topics(pool: Pool, expected_head: int, topic_ids: Sequence[uuid.UUID]) -> bool:
    """False when the head is not `expected_head`; InvalidError when a topic is not there."""
    (deleted,) = await _DELETE_TOPICS.row(
        pool,
        expected_head=expected_head,
        topic_ids=list(topic_ids),
        records=[encode_record(RemoveTopicRecord(topic_id=topic_id)) for topic_id in topic_ids],
    )
    return bool(deleted)


async def register_agent(pool: Pool, registration: AgentRegistration, session_timeout_ms: int) -> RegisteredAgent:
    """AlreadyExistsError while the node id's holder may be alive: until a session timeout after its last contact."""
    end_point = BrokerEndpoint(
        name="PLAINTEXT", host=registration.host, port=registration.port, security_protocol=PLAINTEXT
    )
    record = RegisterBrokerRecord(
        broker_id=0,  # put in by register_agent.sql, as is the epoch
        incarnation_id=registration.incarnation_id,
        broker_epoch=0,
        end_points=(end_point,),
        features=(),
        rack=registration.rack,
    )
    granted, node_id, broker_epoch = await _REGISTER_AGENT.row(
        pool,
        node_id=registration.node_id,
        incarnation_id=registration.incarnation_id,
        host=registration.host,
        port=registration.port,
        rack=registration.rack,
        record=encode_record(record),
        session_timeout_ms=session_timeout_ms,
    )
    if not granted:
        raise AlreadyExistsError(f"node id is in use by another incarnation: node_id={node_id}")
    return RegisteredAgent(node_id, broker_epoch)


async def heartbeat(pool: Pool, node_id: int, broker_epoch: int, *, want_fence: bool, session_timeout_ms: int) -> bool:
    """Whether this agent is unfenced now; FencedError for a stale epoch."""
    (unfenced,) = await _HEARTBEAT.row(
        pool,
        node_id=node_id,
        broker_epoch=broker_epoch,
        want_fence=want_fence,
        session_timeout_ms=session_timeout_ms,
    )
    if unfenced is None:
        raise FencedError(f"agent is not registered so: node_id={node_id} broker_epoch={broker_epoch}")
    return bool(unfenced)


async def unregister_agent(pool: Pool, node_id: int, broker_epoch: int) -> None:
    """Leave at once; nothing happens under a stale epoch."""
    await _UNREGISTER_AGENT.row(pool, node_id=node_id, broker_epoch=broker_epoch)


def _topic_records(topic: NewTopic) -> list[MetadataRecord]:
    """The topic's own record first: its offset becomes the topic's number."""
    count = topic.partition_count
    own = TopicRecord(
        topic_name=topic.name,
        topic_id=topic.topic_id,
        initial_partition_count=count,
        undeleted_partition_count=count,
    )
    partitions = [_partition_record(topic.topic_id, index) for index in range(count)]
    configs = [
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value)
        for name, value in topic.configs.items()
    ]
    return [own, *partitions, *configs]


def _partition_record(topic_id: uuid.UUID, index: int) -> PartitionRecord:
    """Without replicas or leader: any agent serves any partition."""
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=(),
        isr=(),
        removing_replicas=(),
        adding_replicas=(),
        leader=-1,
        leader_epoch=0,
    )
