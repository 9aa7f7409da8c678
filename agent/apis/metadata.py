"""What clients ask to find topics, agents and coordinators.

Metadata and DescribeTopicPartitions ask for their topics by themselves: Metadata is called most often, and the answers
of the other one are pages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable
from typing import Any

from headrace.agent.access.authorization.ask import GatedRequest, split
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, Rule
from headrace.agent.apis.api_row import ApiRow
from headrace.agent.apis.parts import BrokerParts
from headrace.agent.apis.shared_rules import raw_answer
from headrace.agent.topics.metadata.describe_cluster import DescribeCluster
from headrace.agent.topics.metadata.describe_topic_partitions import DescribeTopicPartitions
from headrace.agent.topics.metadata.find_coordinator import FindCoordinator
from headrace.agent.topics.metadata.partition_leader_epochs import PartitionLeaderEpochs
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.ordered_requests import (
    LEADER_EPOCHS_KEY,
    PartitionEpochs,
    decode_epochs_request,
    encode_epochs_response,
)
from headrace.protocol.request import Response

_CLUSTER, _TOPIC = AclResource.CLUSTER, AclResource.TOPIC
_DENIED = FAILED[_TOPIC]
_KEY_TYPES = (AclResource.GROUP, AclResource.TRANSACTIONAL_ID)
"""Types of keys by FindCoordinator's numbers."""
_FIRST_FIND_OF_SEVERAL = 4


def _describe_cluster(ask: GatedRequest) -> Awaitable[Response]:
    """All clients see the agents; authorized operations need DESCRIBE."""
    if not ask.entity.include_cluster_authorized_operations:
        return ask.pass_on()
    operations = ask.access.operations(_CLUSTER) if ask.allows(AclOperation.DESCRIBE, _CLUSTER) else 0

    def change(entity: Any) -> Any:
        return dataclasses.replace(entity, cluster_authorized_operations=operations)

    return ask.pass_on_changed(change)


def _find_coordinator(ask: GatedRequest) -> Awaitable[Response]:
    kind = ask.entity.key_type if ask.request.api_version > 0 else 0
    if kind not in range(len(_KEY_TYPES)):
        return ask.pass_on()  # which refuses it
    resource_type = _KEY_TYPES[kind]
    code = FAILED[resource_type]
    if ask.request.api_version < _FIRST_FIND_OF_SEVERAL:
        if ask.allows(AclOperation.DESCRIBE, resource_type, ask.entity.key):
            return ask.pass_on()
        return ask.refuse(code, node_id=-1, port=-1)
    return split(
        ask,
        "coordinator_keys",
        "coordinators",
        lambda key: ask.allows(AclOperation.DESCRIBE, resource_type, key),
        lambda key: ask.refused("coordinators", key, code),
    )


def _epochs(ask: GatedRequest) -> Awaitable[Response]:
    asked = decode_epochs_request(ask.request.body, ask.request.connection.request_elements_max)
    if all(ask.allows(AclOperation.DESCRIBE, _TOPIC, name) for name in asked):
        return ask.pass_on()
    code = int(FAILED[_TOPIC])
    refused = {name: [PartitionEpochs(index, code) for index in indexes] for name, indexes in asked.items()}
    return raw_answer(ask, encode_epochs_response(refused))


METADATA_ROWS: dict[int, ApiRow[BrokerParts]] = {
    ApiKey.METADATA: ApiRow(
        lambda of: of.metadata,
        Rule(
            None,
            (
                Check(AclOperation.DESCRIBE, _TOPIC, _DENIED, "each topic by name or id"),
                Check(AclOperation.DESCRIBE, _TOPIC, None, "all topics"),
                Check(
                    AclOperation.CREATE, _TOPIC, _DENIED, "each topic to be created automatically; or on the cluster"
                ),
            ),
            "authorized operations of the cluster need DESCRIBE on it",
        ),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ApiRow(
        lambda of: DescribeTopicPartitions(of.cluster, of.shared, of.enforced),
        Rule(
            None,
            (
                Check(AclOperation.DESCRIBE, _TOPIC, _DENIED, "each topic by name"),
                Check(AclOperation.DESCRIBE, _TOPIC, None, "all topics"),
            ),
        ),
    ),
    ApiKey.DESCRIBE_CLUSTER: ApiRow(
        lambda of: DescribeCluster(of.cluster, of.shared),
        Rule(_describe_cluster, (Check(AclOperation.DESCRIBE, _CLUSTER, None, "authorized operations"),)),
    ),
    ApiKey.FIND_COORDINATOR: ApiRow(
        lambda of: FindCoordinator(of.cluster, of.shared, of.refused),
        Rule(
            _find_coordinator,
            tuple(Check(AclOperation.DESCRIBE, kind, FAILED[kind], "each key") for kind in _KEY_TYPES),
        ),
    ),
    LEADER_EPOCHS_KEY: ApiRow(
        lambda of: PartitionLeaderEpochs(of.cluster),
        Rule(_epochs, (Check(AclOperation.DESCRIBE, _TOPIC, FAILED[_TOPIC], "all topics"),)),
        is_advertised=False,
    ),
}
