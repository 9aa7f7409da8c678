"""Requests for every API, each with the grants that it needs: the rows of the matrix of __main__.py.

Place: used by the comparison with Apache Kafka and by tests/faults/test_authorization.py.
"""

from __future__ import annotations

import uuid
from typing import Any

from headrace.agent.access.authorization.operations import CLUSTER_NAME, AclOperation, AclResource
from headrace.protocol.api_keys import ApiKey
from tests.acl_matrix.case import (
    CLUSTER_FAILED,
    CONSUMER_GROUP,
    GROUP_FAILED,
    NEW_TOPIC,
    NO_CODES,
    OLD_TOPIC,
    OWNER,
    SECOND,
    TOPIC,
    TOPIC_FAILED,
    Case,
    Need,
    on_cluster,
    on_topic,
)
from tests.acl_matrix.data_cases import data_cases, group_cases, metadata_cases, offset_cases, producer_cases
from tests.acl_matrix.share_cases import share_cases
from tests.acl_matrix.streams_cases import streams_cases
from tests.acl_matrix.transaction_cases import transaction_cases

WITHOUT_GRANTS = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.FETCH_SNAPSHOT,
    }
)
"""APIs without a row: nothing is asked, or only a controller's listener serves them
(tests/agent/access/authorization/test_gate.py)."""


def cases(topic_id: uuid.UUID) -> list[Case]:
    """Every row, in an order in which earlier ones do not disturb later ones. `topic_id`: of TOPIC."""
    return [
        *data_cases(topic_id),
        *metadata_cases(topic_id),
        *producer_cases(),
        *transaction_cases(),
        *group_cases(),
        *offset_cases(topic_id),
        *share_cases(topic_id),
        *streams_cases(),
        *_cluster(),
        *_access(),
        *_configs(),
        *_topics(),
    ]


def _whole(label: str, api_key: int, needed: AclOperation, /, **values: Any) -> Case:
    return Case(label, api_key, values, on_cluster(needed), CLUSTER_FAILED)


def _cluster() -> list[Case]:
    alter, describe = AclOperation.ALTER, AclOperation.DESCRIBE
    partitions = [{"topic": TOPIC, "partitions": [0]}]
    quorum = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    return [
        _whole("DescribeLogDirs", ApiKey.DESCRIBE_LOG_DIRS, describe, topics=None)._replace(version_min=3),
        _whole("ElectLeaders", ApiKey.ELECT_LEADERS, alter, topic_partitions=partitions),
        _whole("AlterPartitionReassignments", ApiKey.ALTER_PARTITION_REASSIGNMENTS, alter, topics=()),
        _whole("ListPartitionReassignments", ApiKey.LIST_PARTITION_REASSIGNMENTS, describe, topics=None),
        _whole("DescribeQuorum", ApiKey.DESCRIBE_QUORUM, describe, topics=quorum),
        _whole("UpdateFeatures", ApiKey.UPDATE_FEATURES, alter, feature_updates=(), validate_only=True),
        _whole("UnregisterBroker", ApiKey.UNREGISTER_BROKER, alter, broker_id=999_999),
        Case(
            "DescribeCluster",
            ApiKey.DESCRIBE_CLUSTER,
            {"include_cluster_authorized_operations": True},
            on_cluster(describe),
            NO_CODES,
        ),
    ]


def _access() -> list[Case]:
    acl = {
        "resource_type": 2,
        "resource_name": "nothing",
        "resource_pattern_type": 3,
        "principal": "User:nobody",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    every = {
        "resource_type_filter": 2,
        "resource_name_filter": "nothing",
        "pattern_type_filter": 3,
        "operation": 1,
        "permission_type": 1,
    }
    alter, describe = AclOperation.ALTER, AclOperation.DESCRIBE
    quota = [{"entity": [{"entity_type": "user", "entity_name": "nobody"}], "ops": ()}]
    component = [{"entity_type": "user", "match_type": 0, "match": "nobody"}]
    return [
        _whole("DescribeAcls", ApiKey.DESCRIBE_ACLS, describe, **every),
        _whole("CreateAcls", ApiKey.CREATE_ACLS, alter, creations=[acl]),
        _whole("DeleteAcls", ApiKey.DELETE_ACLS, alter, filters=[every]),
        _whole(
            "DescribeClientQuotas", ApiKey.DESCRIBE_CLIENT_QUOTAS, AclOperation.DESCRIBE_CONFIGS, components=component
        ),
        _whole(
            "AlterClientQuotas",
            ApiKey.ALTER_CLIENT_QUOTAS,
            AclOperation.ALTER_CONFIGS,
            entries=quota,
            validate_only=True,
        ),
        _whole(
            "DescribeUserScramCredentials", ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, describe, users=[{"name": "nobody"}]
        ),
        _whole(
            "AlterUserScramCredentials",
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            alter,
            deletions=[{"name": "nobody", "mechanism": 1}],
        ),
        Case(
            "CreateDelegationToken",
            ApiKey.CREATE_DELEGATION_TOKEN,
            {"owner_principal_type": "User", "owner_principal_name": "owner", "max_lifetime": SECOND * 1000},
            (Need(AclOperation.CREATE_TOKENS, AclResource.USER, OWNER),),
            frozenset({"delegation_token_authorization_failed"}),
            version_min=3,
        ),
        Case(
            "DescribeDelegationToken",
            ApiKey.DESCRIBE_DELEGATION_TOKEN,
            {"owners": [{"principal_type": "User", "principal_name": "owner"}]},
            (Need(AclOperation.DESCRIBE_TOKENS, AclResource.USER, OWNER),),
            NO_CODES,
            "tokens",
        ),
    ]


def _configs() -> list[Case]:
    found = []
    for label, kind, name, resource_type, codes in (
        ("topic", 2, TOPIC, AclResource.TOPIC, TOPIC_FAILED),
        ("broker", 4, "", AclResource.CLUSTER, CLUSTER_FAILED),
        ("group", 32, CONSUMER_GROUP, AclResource.GROUP, GROUP_FAILED),
    ):
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        on = CLUSTER_NAME if resource_type is AclResource.CLUSTER else name
        describe = (Need(AclOperation.DESCRIBE_CONFIGS, resource_type, on),)
        alter = (Need(AclOperation.ALTER_CONFIGS, resource_type, on),)
        values = {"resources": [resource], "validate_only": True}
        found += [
            Case(f"DescribeConfigs-{label}", ApiKey.DESCRIBE_CONFIGS, values, describe, codes),
            Case(f"IncrementalAlterConfigs-{label}", ApiKey.INCREMENTAL_ALTER_CONFIGS, values, alter, codes),
        ]
    legacy = {"resources": [{"resource_type": 2, "resource_name": TOPIC}], "validate_only": True}
    return [
        *found,
        Case("AlterConfigs", ApiKey.ALTER_CONFIGS, legacy, on_topic(AclOperation.ALTER_CONFIGS), TOPIC_FAILED),
        _whole("ListConfigResources", ApiKey.LIST_CONFIG_RESOURCES, AclOperation.DESCRIBE_CONFIGS),
    ]


def _topics() -> list[Case]:
    new = {"name": NEW_TOPIC, "num_partitions": 1, "replication_factor": 1}
    delete = {"topics": [{"name": OLD_TOPIC, "topic_id": None}], "topic_names": [OLD_TOPIC], "timeout": SECOND * 10}
    growth = {"topics": [{"name": TOPIC, "count": 9}], "timeout": SECOND * 10, "validate_only": True}
    truncation = {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 0}]}]}
    create = {"topics": [new], "validate_only": True, "timeout": SECOND * 10}
    return [
        Case(
            "CreateTopics",
            ApiKey.CREATE_TOPICS,
            create,
            on_topic(AclOperation.CREATE, NEW_TOPIC),
            TOPIC_FAILED,
        ),
        Case("CreateTopics-cluster", ApiKey.CREATE_TOPICS, create, on_cluster(AclOperation.CREATE), TOPIC_FAILED),
        Case("CreatePartitions", ApiKey.CREATE_PARTITIONS, growth, on_topic(AclOperation.ALTER), TOPIC_FAILED),
        Case(
            "DeleteRecords",
            ApiKey.DELETE_RECORDS,
            truncation | {"timeout": SECOND * 10},
            on_topic(AclOperation.DELETE),
            TOPIC_FAILED,
        ),
        Case("DeleteTopics", ApiKey.DELETE_TOPICS, delete, on_topic(AclOperation.DELETE, OLD_TOPIC), TOPIC_FAILED),
        Case("DeleteTopics-cluster", ApiKey.DELETE_TOPICS, delete, on_cluster(AclOperation.DELETE), TOPIC_FAILED),
    ]
