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

from headrace.metastore.keys import PARTITION_BITS
from headrace.metastore.log.features import required_format
from headrace.metastore.log.records import (
    TOPIC_RESOURCE,
    AccessControlRecord,
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    DelegationTokenRecord,
    FailedReplicasRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    QuotaRecord,
    RegisterBrokerRecord,
    RemoveAccessControlRecord,
    RemoveDelegationTokenRecord,
    RemoveFeatureLevelRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
    encode_new_partitions,
    encode_record,
)
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.metastore.values import AgentRegistration, HeartbeatAnswer, Listener, NewTopic, RegisteredAgent
from headrace.storage.errors import (
    AlreadyExistsError,
    FencedError,
    InvalidError,
    TruncatedError,
    UnsupportedFeatureError,
    WrongClusterError,
)

PLAINTEXT = 0
"""SecurityProtocol of an endpoint."""
NO_CHANGE = -2
"""Leader of a PartitionChangeRecord that says nothing about it."""
_APPENDABLE = (
    PartitionChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    RemoveFeatureLevelRecord,
    FailedReplicasRecord,
    AccessControlRecord,
    RemoveAccessControlRecord,
    UserScramCredentialRecord,
    RemoveUserScramCredentialRecord,
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
    QuotaRecord,
)

_METADATA_HEAD = Statement("metadata_head", writes=False)
_METADATA_LOG_START = Statement("metadata_log_start", writes=False)
_APPEND_RECORDS = Statement("append_records", writes=True)
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


async def metadata_log_start(pool: Pool) -> int:
    """The lowest offset that is still kept."""
    (start,) = await _METADATA_LOG_START.row(pool)
    return int(start)


async def read_metadata(pool: Pool, start_offset: int, limit: int) -> list[bytes]:
    """Up to `limit` framed records from `start_offset` on; TruncatedError when they are no longer kept."""
    rows = await _READ_METADATA.rows(pool, start_offset=start_offset, record_count=limit)
    if rows and rows[0][0] != start_offset:
        raise TruncatedError(
            f"metadata log starts later: start from a snapshot: asked={start_offset} kept={rows[0][0]}"
        )
    return [record for _, record in rows]


async def append_records(
    pool: Pool, expected_head: int, records: Sequence[MetadataRecord], controller_epoch: int | None
) -> bool:
    """False when the head is not `expected_head`; InvalidError for a type that has an operation of its own."""
    for record in records:
        _refuse_unprojected(record)
    changes = [record for record in records if isinstance(record, PartitionChangeRecord)]
    features = [record for record in records if isinstance(record, FeatureLevelRecord | RemoveFeatureLevelRecord)]
    levels = [record if isinstance(record, FeatureLevelRecord) else None for record in features]
    configs = [record for record in records if isinstance(record, ConfigRecord)]
    (appended,) = await _APPEND_RECORDS.row(
        pool,
        controller_epoch=controller_epoch,
        expected_head=expected_head,
        records=[encode_record(record) for record in records],
        format=required_format(records),
        topic_ids=[change.topic_id for change in changes],
        indexes=[change.partition_id for change in changes],
        feature_names=[feature.name for feature in features],
        feature_mins=[level and level.min_feature_level for level in levels],
        feature_maxs=[level and level.max_feature_level for level in levels],
        config_types=[config.resource_type for config in configs],
        config_resources=[config.resource_name for config in configs],
        config_names=[config.name for config in configs],
        config_values=[config.value for config in configs],
    )
    if appended is None:
        raise FencedError(f"controller epoch is stale: controller_epoch={controller_epoch}")
    return bool(appended)


async def create_topics(pool: Pool, expected_head: int, topics: Sequence[NewTopic]) -> bool:
    """False when the head is not `expected_head`; AlreadyExistsError for a name or id that is taken."""
    records: list[bytes] = []
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
        records=records,
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
    """AlreadyExistsError while the node id's holder may be alive: until a session timeout after its last contact.

    WrongClusterError and UnsupportedFeatureError as in metastore/api.py.
    """
    own = registration
    refusal, detail, node_id, broker_epoch = await _REGISTER_AGENT.row(
        pool,
        node_id=own.node_id,
        incarnation_id=own.incarnation_id,
        host=own.host,
        port=own.port,
        rack=own.rack,
        record=encode_record(_register_record(own)),
        session_timeout_ms=session_timeout_ms,
        cluster_id=own.cluster_id,
        feature_names=list(own.features),
        feature_mins=[levels.min_level for levels in own.features.values()],
        feature_maxs=[levels.max_level for levels in own.features.values()],
    )
    match refusal:
        case "cluster":
            raise WrongClusterError(f"this is another cluster: asked={own.cluster_id}")
        case "feature":
            raise UnsupportedFeatureError(f"the cluster uses a feature level that the agent lacks: feature={detail}")
        case "node id":
            raise AlreadyExistsError(f"node id is in use by another incarnation: node_id={node_id}")
    return RegisteredAgent(node_id, broker_epoch)


async def heartbeat(
    pool: Pool,
    node_id: int,
    broker_epoch: int,
    *,
    metadata_offset: int,
    want_fence: bool,
    want_shut_down: bool,
    session_timeout_ms: int,
    max_lag: int,
) -> HeartbeatAnswer:
    """FencedError for a stale epoch."""
    row = await _HEARTBEAT.row(
        pool,
        node_id=node_id,
        broker_epoch=broker_epoch,
        metadata_offset=metadata_offset,
        want_fence=want_fence,
        want_shut_down=want_shut_down,
        session_timeout_ms=session_timeout_ms,
        max_lag=max_lag,
    )
    if row[0] is None:
        raise FencedError(f"agent is not registered so: node_id={node_id} broker_epoch={broker_epoch}")
    return HeartbeatAnswer(*row)


async def unregister_agent(pool: Pool, node_id: int, broker_epoch: int) -> None:
    """Leave at once; nothing happens under a stale epoch."""
    await _UNREGISTER_AGENT.row(pool, node_id=node_id, broker_epoch=broker_epoch)


def _refuse_unprojected(record: MetadataRecord) -> None:
    """The tables would no longer say what the log says."""
    moves_data = isinstance(record, PartitionChangeRecord) and (record.leader != NO_CHANGE or record.isr is not None)
    if not isinstance(record, _APPENDABLE) or moves_data:
        raise InvalidError(f"record cannot be appended by itself: record={record}")


def _register_record(own: AgentRegistration) -> RegisterBrokerRecord:
    """Broker id and epoch are put in by register_agent.sql."""
    listeners = own.listeners or (Listener("PLAINTEXT", own.host, own.port, PLAINTEXT),)
    if listeners[0][1:3] != (own.host, own.port):
        raise InvalidError(f"the first listener is not the one for clients: listener={listeners[0]} host={own.host}")
    return RegisterBrokerRecord(
        broker_id=0,
        incarnation_id=own.incarnation_id,
        broker_epoch=0,
        end_points=tuple(
            BrokerEndpoint(name=name, host=host, port=port, security_protocol=protocol)
            for name, host, port, protocol in listeners
        ),
        features=tuple(
            BrokerFeature(name=name, min_version=levels.min_level, max_version=levels.max_level)
            for name, levels in own.features.items()
        ),
        rack=own.rack,
    )


def _topic_records(topic: NewTopic) -> list[bytes]:
    """The topic's own record first: its offset becomes the topic's number."""
    count = topic.partition_count
    own = TopicRecord(
        topic_name=topic.name,
        topic_id=topic.topic_id,
        initial_partition_count=count,
        undeleted_partition_count=count,
    )
    configs = [
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value)
        for name, value in topic.configs.items()
    ]
    partitions = encode_new_partitions(topic.topic_id, range(count), topic.preferred)
    return [encode_record(own), *partitions, *map(encode_record, configs)]
