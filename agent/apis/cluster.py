"""Rules of the APIs about the cluster, access and connections."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.ask import GatedRequest
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, Rule, mirrored, whole
from headrace.protocol.request import Response

_CLUSTER = AclResource.CLUSTER
_FIRST_LOG_DIRS_WITH_CODE = 3
_NO_PRODUCER = {"producer_id": -1, "producer_epoch": -1}
EVERYONE = Rule(None, (), "all clients: it comes before a principal is known")


def _init_producer_id(ask: GatedRequest) -> Awaitable[Response]:
    transactional_id = ask.entity.transactional_id
    if transactional_id is not None:
        if ask.allows(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, transactional_id):
            return ask.pass_on()
        return ask.refuse(FAILED[AclResource.TRANSACTIONAL_ID], **_NO_PRODUCER)
    if ask.access.allows_any(AclOperation.WRITE, AclResource.TOPIC):
        return ask.pass_on()
    if ask.allows(AclOperation.IDEMPOTENT_WRITE, _CLUSTER):
        return ask.pass_on()
    return ask.refuse(FAILED[_CLUSTER], **_NO_PRODUCER)


def _describe_cluster(ask: GatedRequest) -> Awaitable[Response]:
    """All clients see the agents; authorized operations need DESCRIBE."""
    if not ask.entity.include_cluster_authorized_operations:
        return ask.pass_on()
    operations = ask.access.operations(_CLUSTER) if ask.allows(AclOperation.DESCRIBE, _CLUSTER) else 0

    def change(entity: Any) -> Any:
        return dataclasses.replace(entity, cluster_authorized_operations=operations)

    return ask.pass_on_changed(change)


def _refuse_log_dirs(ask: GatedRequest, code: ErrorCode) -> Awaitable[Response]:
    return ask.refuse(code) if ask.request.api_version >= _FIRST_LOG_DIRS_WITH_CODE else ask.answer(results=())


def _refuse_election(ask: GatedRequest, code: ErrorCode) -> Awaitable[Response]:
    if ask.request.api_version > 0:
        return ask.refuse(code)
    return mirrored("topic_partitions", "replica_election_results")(ask, code)


def _refuse_credentials(ask: GatedRequest, code: ErrorCode) -> Awaitable[Response]:
    users = dict.fromkeys(each.name for each in (*ask.entity.deletions, *ask.entity.upsertions))
    return ask.answer(results=tuple(ask.refused("results", user, code) for user in users))


ALTER = whole(AclOperation.ALTER, _CLUSTER)
DESCRIBE = whole(AclOperation.DESCRIBE, _CLUSTER)
ACTION = whole(AclOperation.CLUSTER_ACTION, _CLUSTER)
OWN_TOKENS = Rule(None, (), "the token's owner and its renewers")
INIT_PRODUCER_ID = Rule(
    _init_producer_id,
    (
        Check(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, FAILED[AclResource.TRANSACTIONAL_ID], "if it is given"),
        Check(AclOperation.IDEMPOTENT_WRITE, _CLUSTER, FAILED[_CLUSTER], "otherwise; or WRITE on any topic"),
    ),
)
DESCRIBE_CLUSTER = Rule(_describe_cluster, (Check(AclOperation.DESCRIBE, _CLUSTER, None, "authorized operations"),))
CREATE_ACLS = whole(AclOperation.ALTER, _CLUSTER, None, mirrored("creations", "results"))
DELETE_ACLS = whole(AclOperation.ALTER, _CLUSTER, None, mirrored("filters", "filter_results"))
DESCRIBE_LOG_DIRS = whole(AclOperation.DESCRIBE, _CLUSTER, None, _refuse_log_dirs)
ELECT_LEADERS = whole(AclOperation.ALTER, _CLUSTER, None, _refuse_election)
DESCRIBE_CLIENT_QUOTAS = whole(AclOperation.DESCRIBE_CONFIGS, _CLUSTER)
ALTER_CLIENT_QUOTAS = whole(AclOperation.ALTER_CONFIGS, _CLUSTER, None, mirrored("entries", "entries"))
ALTER_USER_SCRAM_CREDENTIALS = whole(AclOperation.ALTER, _CLUSTER, None, _refuse_credentials)
CREATE_DELEGATION_TOKEN = Rule(
    None,
    (Check(AclOperation.CREATE_TOKENS, AclResource.USER, FAILED[AclResource.USER], "a token for another principal"),),
)
DESCRIBE_DELEGATION_TOKEN = Rule(
    None,
    (
        Check(AclOperation.DESCRIBE, AclResource.DELEGATION_TOKEN, None, "each token that is not the client's own"),
        Check(AclOperation.DESCRIBE_TOKENS, AclResource.USER, None, "instead: all tokens of an owner"),
    ),
)
