"""The APIs about the cluster: its agents, its topics as clients find them, its controllers, its access.

Place: CONTROLLER_ROWS are served on a controller's listener, the other rows on those of brokers. Kafka's brokers
forward requests that change ACLs, delegation tokens, quotas or users to the controller; every agent serves them.
Metadata and DescribeTopicPartitions ask for their topics by themselves: Metadata is called most often, and the
answers of the other one are pages.
Source: KIP-631, networking; which requests a controller answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Iterator
from typing import Any

from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest
from kio.schema.alter_client_quotas.v1.response import AlterClientQuotasResponse
from kio.schema.alter_partition_reassignments.v1.request import AlterPartitionReassignmentsRequest
from kio.schema.alter_partition_reassignments.v1.response import AlterPartitionReassignmentsResponse
from kio.schema.alter_user_scram_credentials.v0.request import AlterUserScramCredentialsRequest
from kio.schema.alter_user_scram_credentials.v0.response import AlterUserScramCredentialsResponse
from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest
from kio.schema.create_acls.v3.response import CreateAclsResponse
from kio.schema.create_delegation_token.v3.request import CreateDelegationTokenRequest
from kio.schema.create_delegation_token.v3.response import CreateDelegationTokenResponse
from kio.schema.delete_acls.v3.request import DeleteAclsRequest
from kio.schema.delete_acls.v3.response import DeleteAclsMatchingAcl, DeleteAclsResponse
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse
from kio.schema.errors import ErrorCode
from kio.schema.renew_delegation_token.v2.request import RenewDelegationTokenRequest
from kio.schema.renew_delegation_token.v2.response import RenewDelegationTokenResponse
from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
from kio.schema.unregister_broker.v0.response import UnregisterBrokerResponse
from kio.schema.update_features.v2.request import UpdateFeaturesRequest
from kio.schema.update_features.v2.response import UpdateFeaturesResponse

from headrace.agent.access.admin.acls import CreateAcls, DeleteAcls, DescribeAcls
from headrace.agent.access.admin.client_quotas import AlterClientQuotas, DescribeClientQuotas
from headrace.agent.access.admin.scram_credentials import AlterUserScramCredentials, DescribeUserScramCredentials
from headrace.agent.access.audit import Change, of_entities
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, GatedRequest, Rule, mirrored, split, whole
from headrace.agent.apis.api_row import ALTER_CLUSTER, DESCRIBE_CLUSTER, ApiRow, raw_answer, unadvertised
from headrace.agent.apis.parts import AccessParts, BrokerParts, ControllerParts
from headrace.agent.cluster.requests.brokers import (
    AlterPartitionReassignments,
    BrokerHeartbeat,
    BrokerRegistration,
    ListPartitionReassignments,
    UnregisterBroker,
)
from headrace.agent.cluster.requests.metadata_log import DescribeQuorum, FetchSnapshot, UpdateFeatures
from headrace.agent.topics.metadata.described_topics import DescribeTopicPartitions
from headrace.agent.topics.metadata.routing_requests import DescribeCluster, FindCoordinator, PartitionLeaderEpochs
from headrace.agent.topics.partition_requests import DescribeLogDirs, ElectLeaders
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import CONTROLLER_ONLY
from headrace.protocol.ordered_requests import (
    LEADER_EPOCHS_KEY,
    PartitionEpochs,
    decode_epochs_request,
    encode_epochs_response,
)
from headrace.protocol.request import Response

_CLUSTER = AclResource.CLUSTER
_OWN_TOKENS = Rule(None, (), "the token's owner and its renewers")
_RESOURCE_TYPES = {2: "TOPIC", 3: "GROUP", 4: "CLUSTER", 5: "TRANSACTIONAL_ID", 6: "DELEGATION_TOKEN", 7: "USER"}


def _refuse_credentials(ask: GatedRequest, code: ErrorCode) -> Awaitable[Response]:
    users = dict.fromkeys(each.name for each in (*ask.entity.deletions, *ask.entity.upsertions))
    return ask.answer(results=tuple(ask.refused("results", user, code) for user in users))


@of_entities
def created_acls(request: CreateAclsRequest, response: CreateAclsResponse) -> Iterator[Change]:
    for acl, result in zip(request.creations, response.results, strict=True):
        kind = _RESOURCE_TYPES.get(acl.resource_type, acl.resource_type)
        yield Change(f"{kind}:{acl.resource_name}", result.error_code, _acl(acl, acl.resource_pattern_type))


@of_entities
def deleted_acls(request: DeleteAclsRequest, response: DeleteAclsResponse) -> Iterator[Change]:
    for wanted, result in zip(request.filters, response.filter_results, strict=True):
        if result.error_code != ErrorCode.none:
            name = "*" if wanted.resource_name_filter is None else wanted.resource_name_filter
            yield Change(f"{_RESOURCE_TYPES.get(wanted.resource_type_filter, 'ANY')}:{name}", result.error_code)
        for acl in result.matching_acls:
            kind = _RESOURCE_TYPES.get(acl.resource_type, acl.resource_type)
            yield Change(f"{kind}:{acl.resource_name}", acl.error_code, _acl(acl, acl.pattern_type))


def _acl(acl: AclCreation | DeleteAclsMatchingAcl, pattern_type: int) -> str:
    return (
        f"pattern_type {pattern_type} principal {acl.principal} host {acl.host} operation {acl.operation}"
        f" permission_type {acl.permission_type}"
    )


@of_entities
def created_token(request: CreateDelegationTokenRequest, response: CreateDelegationTokenResponse) -> Iterator[Change]:
    if response.error_code:
        yield Change("DELEGATION_TOKEN:", response.error_code)
    else:
        owner = f"owner {response.principal_type}:{response.principal_name}"
        yield Change(f"DELEGATION_TOKEN:{response.token_id}", response.error_code, owner)


@of_entities
def altered_token(request: RenewDelegationTokenRequest, response: RenewDelegationTokenResponse) -> Iterator[Change]:
    """The request names it by its HMAC, which is a secret."""
    yield Change("DELEGATION_TOKEN:", response.error_code)


@of_entities
def quotas(request: AlterClientQuotasRequest, response: AlterClientQuotasResponse) -> Iterator[Change]:
    for asked, entry in zip(request.entries, response.entries, strict=True):
        entity = " ".join(f"{part.entity_type}={part.entity_name or '<default>'}" for part in entry.entity)
        what = " ".join(f"{op.key}={'<removed>' if op.remove else op.value}" for op in asked.ops)
        yield Change(f"CLIENT_QUOTA:{entity}", entry.error_code, what)


@of_entities
def users(request: AlterUserScramCredentialsRequest, response: AlterUserScramCredentialsResponse) -> Iterator[Change]:
    for result in response.results:
        deleted = [f"deleted mechanism {d.mechanism}" for d in request.deletions if d.name == result.user]
        changed = [f"set mechanism {u.mechanism}" for u in request.upsertions if u.name == result.user]
        yield Change(f"USER:{result.user}", result.error_code, " ".join(deleted + changed))


ACCESS_ROWS: dict[int, ApiRow[AccessParts]] = {
    ApiKey.DESCRIBE_ACLS: ApiRow(lambda of: DescribeAcls(of.change.cluster), DESCRIBE_CLUSTER),
    ApiKey.CREATE_ACLS: ApiRow(
        lambda of: CreateAcls(of.change),
        whole(AclOperation.ALTER, _CLUSTER, None, mirrored("creations", "results")),
        created_acls,
    ),
    ApiKey.DELETE_ACLS: ApiRow(
        lambda of: DeleteAcls(of.change),
        whole(AclOperation.ALTER, _CLUSTER, None, mirrored("filters", "filter_results")),
        deleted_acls,
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: ApiRow(
        lambda of: of.tokens.create,
        Rule(
            None,
            (
                Check(
                    AclOperation.CREATE_TOKENS,
                    AclResource.USER,
                    FAILED[AclResource.USER],
                    "a token for another principal",
                ),
            ),
        ),
        created_token,
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: ApiRow(lambda of: of.tokens.renew, _OWN_TOKENS, altered_token),
    ApiKey.EXPIRE_DELEGATION_TOKEN: ApiRow(lambda of: of.tokens.expire, _OWN_TOKENS, altered_token),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ApiRow(
        lambda of: of.tokens.describe,
        Rule(
            None,
            (
                Check(
                    AclOperation.DESCRIBE,
                    AclResource.DELEGATION_TOKEN,
                    None,
                    "each token that is not the client's own",
                ),
                Check(AclOperation.DESCRIBE_TOKENS, AclResource.USER, None, "instead: all tokens of an owner"),
            ),
        ),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ApiRow(
        lambda of: DescribeClientQuotas(of.change.cluster), whole(AclOperation.DESCRIBE_CONFIGS, _CLUSTER)
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: ApiRow(
        lambda of: AlterClientQuotas(of.change),
        whole(AclOperation.ALTER_CONFIGS, _CLUSTER, None, mirrored("entries", "entries")),
        quotas,
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ApiRow(
        lambda of: DescribeUserScramCredentials(of.change.cluster), DESCRIBE_CLUSTER
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ApiRow(
        lambda of: AlterUserScramCredentials(of.change, of.sealed_keys),
        whole(AclOperation.ALTER, _CLUSTER, None, _refuse_credentials),
        users,
    ),
}


_TOPIC = AclResource.TOPIC
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
