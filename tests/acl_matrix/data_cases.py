"""Rows about records, topics, producers and groups."""

from __future__ import annotations

import uuid

from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.protocol.api_keys import ApiKey
from headrace.storage.records.codec import Record, encode_batch
from tests.acl_matrix.case import (
    CLUSTER_FAILED,
    CONSUMER_GROUP,
    GROUP,
    GROUP_FAILED,
    NO_CODES,
    SECOND,
    TOPIC,
    TOPIC_FAILED,
    TRANSACTION,
    Case,
    Need,
    on_cluster,
    on_group,
    on_topic,
)


def data_cases(topic_id: uuid.UUID) -> list[Case]:
    """Produce, Fetch and offsets of records."""
    batch = encode_batch([Record(0, 1_700_000_000_000, None, b"value")], base_offset=0)
    named = {"name": TOPIC, "topic": TOPIC, "topic_id": topic_id}
    produce = {"acks": -1, "timeout": SECOND}
    fetch = {"max_wait": SECOND * 0, "min_bytes": 0}
    records = [{"index": 0, "records": batch}]
    partitions = [{"partition": 0, "partition_index": 0, "partition_max_bytes": 1000, "timestamp": -1, "offset": 0}]
    log = {"topic": "__cluster_metadata", "topic_id": uuid.UUID(int=1), "partitions": partitions}
    write, read, describe = (on_topic(each) for each in (AclOperation.WRITE, AclOperation.READ, AclOperation.DESCRIBE))
    return [
        Case(
            "Produce",
            ApiKey.PRODUCE,
            produce | {"topic_data": [named | {"partition_data": records}]},
            write,
            TOPIC_FAILED,
            version_min=3,
        ),
        Case(
            "Produce-transaction",
            ApiKey.PRODUCE,
            produce | {"transactional_id": TRANSACTION, "topic_data": [named | {"partition_data": records}]},
            (Need(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, TRANSACTION), *write),
            frozenset({"transactional_id_authorization_failed"}),
            version_min=3,
        ),
        Case("Fetch", ApiKey.FETCH, fetch | {"topics": [named | {"partitions": partitions}]}, read, TOPIC_FAILED),
        Case(
            "Fetch-metadata",
            ApiKey.FETCH,
            fetch | {"topics": [log]},
            on_cluster(AclOperation.CLUSTER_ACTION),
            TOPIC_FAILED,
        ),
        Case(
            "ListOffsets",
            ApiKey.LIST_OFFSETS,
            {"replica_id": -1, "topics": [named | {"partitions": partitions}]},
            describe,
            TOPIC_FAILED,
        ),
        Case(
            "OffsetForLeaderEpoch",
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            {"topics": [named | {"partitions": partitions}]},
            describe,
            TOPIC_FAILED,
        ),
    ]


def metadata_cases(topic_id: uuid.UUID) -> list[Case]:
    """Return what is known of topics and their records."""
    describe, read = on_topic(AclOperation.DESCRIBE), on_topic(AclOperation.READ)
    return [
        Case("Metadata", ApiKey.METADATA, {"topics": [{"name": TOPIC, "topic_id": None}]}, describe, TOPIC_FAILED),
        Case("Metadata-id", ApiKey.METADATA, {"topics": [{"topic_id": topic_id}]}, describe, TOPIC_FAILED, "", 12),
        Case("Metadata-all", ApiKey.METADATA, {"topics": None}, describe, NO_CODES, "topics", 1),
        Case(
            "Metadata-create",
            ApiKey.METADATA,
            {"topics": [{"name": "acl-auto", "topic_id": None}], "allow_auto_topic_creation": True},
            (
                Need(AclOperation.DESCRIBE, AclResource.TOPIC, "acl-auto"),
                Need(AclOperation.CREATE, AclResource.TOPIC, "acl-auto"),
            ),
            TOPIC_FAILED,
        ),
        Case(
            "DescribeTopicPartitions",
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            {"topics": [{"name": TOPIC}]},
            describe,
            TOPIC_FAILED,
        ),
        Case(
            "DescribeTopicPartitions-all",
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            {"topics": ()},
            describe,
            NO_CODES,
            "topics",
        ),
        Case(
            "DescribeProducers",
            ApiKey.DESCRIBE_PRODUCERS,
            {"topics": [{"name": TOPIC, "partition_indexes": [0]}]},
            read,
            TOPIC_FAILED,
        ),
    ]


def producer_cases() -> list[Case]:
    """InitProducerId."""
    write = on_topic(AclOperation.WRITE)
    return [
        Case(
            "InitProducerId",
            ApiKey.INIT_PRODUCER_ID,
            {"transaction_timeout": SECOND},
            on_cluster(AclOperation.IDEMPOTENT_WRITE),
            CLUSTER_FAILED,
        ),
        Case("InitProducerId-write", ApiKey.INIT_PRODUCER_ID, {"transaction_timeout": SECOND}, write, CLUSTER_FAILED),
        Case(
            "InitProducerId-transaction",
            ApiKey.INIT_PRODUCER_ID,
            {"transactional_id": TRANSACTION, "transaction_timeout": SECOND},
            (Need(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, TRANSACTION),),
            frozenset({"transactional_id_authorization_failed"}),
        ),
    ]


def group_cases() -> list[Case]:
    """Classic groups and their coordinators."""
    member = {"group_id": GROUP, "member_id": "m", "generation_id": 1}
    read, describe = on_group(AclOperation.READ), on_group(AclOperation.DESCRIBE)
    return [
        Case(
            "FindCoordinator",
            ApiKey.FIND_COORDINATOR,
            {"key": GROUP, "coordinator_keys": [GROUP]},
            describe,
            GROUP_FAILED,
        ),
        Case(
            "FindCoordinator-transaction",
            ApiKey.FIND_COORDINATOR,
            {"key": TRANSACTION, "coordinator_keys": [TRANSACTION], "key_type": 1},
            (Need(AclOperation.DESCRIBE, AclResource.TRANSACTIONAL_ID, TRANSACTION),),
            frozenset({"transactional_id_authorization_failed"}),
            version_min=1,
        ),
        Case(
            "JoinGroup",
            ApiKey.JOIN_GROUP,
            member | {"member_id": "", "session_timeout": SECOND * 10, "protocol_type": "consumer"},
            read,
            GROUP_FAILED,
        ),
        Case(
            "SyncGroup",
            ApiKey.SYNC_GROUP,
            member | {"protocol_type": "consumer", "protocol_name": "range"},
            read,
            GROUP_FAILED,
        ),
        Case("Heartbeat", ApiKey.HEARTBEAT, member, read, GROUP_FAILED),
        Case("LeaveGroup", ApiKey.LEAVE_GROUP, member | {"members": [{"member_id": "m"}]}, read, GROUP_FAILED),
    ]


def offset_cases(topic_id: uuid.UUID) -> list[Case]:
    """Groups of KIP-848, offsets, and the end of groups."""
    named = {"name": TOPIC, "topic_id": topic_id}
    read, describe, delete = (
        on_group(each) for each in (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE)
    )
    read_topic = on_topic(AclOperation.READ)
    commit = [named | {"partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    asked = [named | {"partition_indexes": [0]}]
    return [
        Case(
            "ConsumerGroupHeartbeat",
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            {
                "group_id": CONSUMER_GROUP,
                "member_id": "m",
                "rebalance_timeout": SECOND,
                "subscribed_topic_names": [TOPIC],
                "topic_partitions": (),
            },
            (*on_group(AclOperation.READ, CONSUMER_GROUP), *on_topic(AclOperation.DESCRIBE)),
            GROUP_FAILED,
        ),
        Case(
            "ConsumerGroupDescribe",
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            {"group_ids": [CONSUMER_GROUP]},
            (*on_group(AclOperation.DESCRIBE, CONSUMER_GROUP), *on_topic(AclOperation.DESCRIBE)),
            GROUP_FAILED,
        ),
        Case(
            "OffsetCommit",
            ApiKey.OFFSET_COMMIT,
            {"group_id": GROUP, "generation_id_or_member_epoch": -1, "topics": commit},
            (*read, *read_topic),
            GROUP_FAILED,
        ),
        Case(
            "OffsetFetch",
            ApiKey.OFFSET_FETCH,
            {"group_id": GROUP, "topics": asked, "groups": [{"group_id": GROUP, "topics": asked}]},
            (*describe, *on_topic(AclOperation.DESCRIBE)),
            GROUP_FAILED,
        ),
        Case(
            "OffsetFetch-all",
            ApiKey.OFFSET_FETCH,
            {"group_id": GROUP, "topics": None, "groups": [{"group_id": GROUP, "topics": None}]},
            (*describe, *on_topic(AclOperation.DESCRIBE)),
            GROUP_FAILED,
            version_min=2,
        ),
        Case("DescribeGroups", ApiKey.DESCRIBE_GROUPS, {"groups": [GROUP]}, describe, GROUP_FAILED),
        Case("ListGroups", ApiKey.LIST_GROUPS, {}, describe, NO_CODES, "groups"),
        Case("ListGroups-cluster", ApiKey.LIST_GROUPS, {}, on_cluster(AclOperation.DESCRIBE), NO_CODES, "groups"),
        Case(
            "OffsetDelete",
            ApiKey.OFFSET_DELETE,
            {"group_id": GROUP, "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]},
            (*delete, *read_topic),
            GROUP_FAILED,
        ),
        Case("DeleteGroups", ApiKey.DELETE_GROUPS, {"groups_names": [GROUP]}, delete, GROUP_FAILED),
    ]
