"""The APIs about agents and controllers: CONTROLLER_ROWS on a controller's listener, CLUSTER_ROWS on those of brokers.

Source: KIP-631, networking; which requests a controller answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator

from kio.schema.alter_partition_reassignments.v1.request import AlterPartitionReassignmentsRequest
from kio.schema.alter_partition_reassignments.v1.response import AlterPartitionReassignmentsResponse
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse
from kio.schema.errors import ErrorCode
from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
from kio.schema.unregister_broker.v0.response import UnregisterBrokerResponse
from kio.schema.update_features.v2.request import UpdateFeaturesRequest
from kio.schema.update_features.v2.response import UpdateFeaturesResponse

from headrace.agent.access.audited_changes import Change, of_entities
from headrace.agent.access.authorization.ask import GatedRequest
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import mirrored, whole
from headrace.agent.apis.api_row import ApiRow, unadvertised
from headrace.agent.apis.parts import BrokerParts, ControllerParts
from headrace.agent.apis.shared_rules import ALTER_CLUSTER, DESCRIBE_CLUSTER
from headrace.agent.cluster.requests.broker_lifecycle import BrokerHeartbeat, BrokerRegistration, UnregisterBroker
from headrace.agent.cluster.requests.describe_quorum import DescribeQuorum
from headrace.agent.cluster.requests.fetch_snapshot import FetchSnapshot
from headrace.agent.cluster.requests.partition_reassignments import (
    AlterPartitionReassignments,
    ListPartitionReassignments,
)
from headrace.agent.cluster.requests.update_features import UpdateFeatures
from headrace.agent.topics.describe_log_dirs import DescribeLogDirs
from headrace.agent.topics.elect_leaders import ElectLeaders
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import CONTROLLER_ONLY
from headrace.protocol.request import Response

_CLUSTER = AclResource.CLUSTER
_FIRST_LOG_DIRS_WITH_CODE = 3
_ACTION = whole(AclOperation.CLUSTER_ACTION, _CLUSTER)


def _refuse_log_dirs(ask: GatedRequest, code: ErrorCode) -> Awaitable[Response]:
    return ask.refuse(code) if ask.request.api_version >= _FIRST_LOG_DIRS_WITH_CODE else ask.answer(results=())


def _refuse_election(ask: GatedRequest, code: ErrorCode) -> Awaitable[Response]:
    if ask.request.api_version > 0:
        return ask.refuse(code)
    return mirrored("topic_partitions", "replica_election_results")(ask, code)


@of_entities
def elections(request: ElectLeadersRequest, response: ElectLeadersResponse) -> Iterator[Change]:
    for topic in response.replica_election_results:
        for partition in topic.partition_result:
            yield Change(f"TOPIC:{topic.topic}", partition.error_code, f"partition {partition.partition_id}")


@of_entities
def reassignments(
    request: AlterPartitionReassignmentsRequest, response: AlterPartitionReassignmentsResponse
) -> Iterator[Change]:
    if response.error_code != ErrorCode.none:
        yield Change("CLUSTER:kafka-cluster", response.error_code)
    for topic in response.responses:
        for partition in topic.partitions:
            yield Change(f"TOPIC:{topic.name}", partition.error_code, f"partition {partition.partition_index}")


@of_entities
def features(request: UpdateFeaturesRequest, response: UpdateFeaturesResponse) -> Iterator[Change]:
    results = {result.feature: result.error_code for result in getattr(response, "results", ())}
    for update in request.feature_updates:
        code = response.error_code if response.error_code != ErrorCode.none else results.get(update.feature, 0)
        yield Change(f"FEATURE:{update.feature}", code, f"level {update.max_version_level}")


@of_entities
def broker(request: UnregisterBrokerRequest, response: UnregisterBrokerResponse) -> Iterator[Change]:
    yield Change(f"BROKER:{request.broker_id}", response.error_code)


CONTROLLER_ROWS: dict[int, ApiRow[ControllerParts]] = {
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ApiRow(
        lambda of: AlterPartitionReassignments(of.change, of.shared), ALTER_CLUSTER, reassignments
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ApiRow(lambda of: ListPartitionReassignments(of.cluster), DESCRIBE_CLUSTER),
    ApiKey.DESCRIBE_QUORUM: ApiRow(lambda of: DescribeQuorum(of.cluster, of.metastore), DESCRIBE_CLUSTER),
    ApiKey.UPDATE_FEATURES: ApiRow(lambda of: UpdateFeatures(of.change, of.metastore.cluster), ALTER_CLUSTER, features),
    ApiKey.FETCH_SNAPSHOT: ApiRow(lambda of: FetchSnapshot(of.metastore.cluster), _ACTION),
    ApiKey.BROKER_REGISTRATION: ApiRow(
        lambda of: BrokerRegistration(of.metastore.cluster, of.is_active_controller), _ACTION
    ),
    ApiKey.BROKER_HEARTBEAT: ApiRow(
        lambda of: BrokerHeartbeat(of.cluster, of.metastore.cluster, of.in_force, of.is_active_controller), _ACTION
    ),
    ApiKey.UNREGISTER_BROKER: ApiRow(
        lambda of: UnregisterBroker(of.cluster, of.metastore.cluster, of.is_active_controller), ALTER_CLUSTER, broker
    ),
}
CLUSTER_ROWS: dict[int, ApiRow[BrokerParts]] = {
    **{key: row for key, row in CONTROLLER_ROWS.items() if key not in CONTROLLER_ONLY},
    ApiKey.FETCH_SNAPSHOT: unadvertised(CONTROLLER_ROWS[ApiKey.FETCH_SNAPSHOT]),
    ApiKey.UNREGISTER_BROKER: ApiRow(  # where Kafka's brokers forward it
        lambda of: UnregisterBroker(of.cluster, of.metastore.cluster), ALTER_CLUSTER, broker
    ),
    ApiKey.ELECT_LEADERS: ApiRow(
        lambda of: ElectLeaders(of.cluster), whole(AclOperation.ALTER, _CLUSTER, None, _refuse_election), elections
    ),
    ApiKey.DESCRIBE_LOG_DIRS: ApiRow(
        lambda of: DescribeLogDirs(of.cluster, of.metastore.reports, of.settings.bucket, of.shared),
        whole(AclOperation.DESCRIBE, _CLUSTER, None, _refuse_log_dirs),
    ),
}
