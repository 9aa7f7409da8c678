"""The APIs of classic and consumer groups, except their offsets (offsets.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Iterator
from functools import partial

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeleteGroupsResponse
from kio.schema.describe_groups.v6.response import DescribeGroupsResponse
from kio.schema.list_groups.v5.response import ListGroupsResponse

from headrace.agent.access.audited_changes import Change, of_entities
from headrace.agent.access.authorization.ask import GatedRequest, split
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, Rule, each, group_of, itself, whole
from headrace.agent.apis.api_row import ApiRow
from headrace.agent.apis.group_parts import GroupParts
from headrace.agent.apis.shared_rules import (
    DESCRIBE_WITH_TOPICS,
    HEARTBEAT_CHECKS,
    OPERATIONS_UNITS,
    group_operations,
    heartbeat_with_topics,
)
from headrace.agent.groups.admin_requests import DeleteGroups, ListGroups
from headrace.agent.groups.classic.describe_request import DescribeGroups
from headrace.agent.groups.classic.membership_requests import Heartbeat, JoinGroup, LeaveGroup, SyncGroup
from headrace.agent.groups.consumer.describe_request import ConsumerGroupDescribe
from headrace.agent.groups.consumer.heartbeat_request import ConsumerGroupHeartbeat
from headrace.agent.limits.work_slices import WorkSlices
from headrace.agent.peers.forwarding.routes import Elements, Whole
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import Response

_GROUP, _TOPIC = AclResource.GROUP, AclResource.TOPIC
_DENIED = FAILED[_GROUP]
_BY_FIRST_FIELD = Whole.GROUP_IN_FIRST_FIELD
_MEMBER = whole(AclOperation.READ, _GROUP, group_of)


def _list(ask: GatedRequest) -> Awaitable[Response]:
    if ask.access.allows(AclOperation.DESCRIBE, AclResource.CLUSTER):
        return ask.pass_on()

    async def seen(entity: ListGroupsResponse) -> ListGroupsResponse:
        groups = await ask.seen(_GROUP, entity.groups, lambda one: str(one.group_id), WorkSlices())
        return dataclasses.replace(entity, groups=groups)

    return ask.pass_on_changed(seen)


def _describe(ask: GatedRequest) -> Awaitable[Response]:
    async def change(entity: DescribeGroupsResponse) -> DescribeGroupsResponse:
        groups = await WorkSlices().each(partial(group_operations, ask), entity.groups, OPERATIONS_UNITS)
        return dataclasses.replace(entity, groups=groups)

    return split(
        ask,
        "groups",
        "groups",
        lambda group_id: ask.allows(AclOperation.DESCRIBE, _GROUP, group_id),
        lambda group_id: ask.refused("groups", group_id, _DENIED),
        change,
    )


@of_entities
def deleted_groups(request: DeleteGroupsRequest, response: DeleteGroupsResponse) -> Iterator[Change]:
    for group in response.results:
        yield Change(f"GROUP:{group.group_id}", group.error_code)


GROUP_ROWS: dict[int, ApiRow[GroupParts]] = {
    ApiKey.JOIN_GROUP: ApiRow(lambda of: JoinGroup(of.coordinator, of.in_force), _MEMBER, route=_BY_FIRST_FIELD),
    ApiKey.HEARTBEAT: ApiRow(lambda of: Heartbeat(of.coordinator), _MEMBER, route=_BY_FIRST_FIELD),
    ApiKey.LEAVE_GROUP: ApiRow(lambda of: LeaveGroup(of.coordinator), _MEMBER, route=_BY_FIRST_FIELD),
    ApiKey.SYNC_GROUP: ApiRow(lambda of: SyncGroup(of.coordinator), _MEMBER, route=_BY_FIRST_FIELD),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ApiRow(
        lambda of: ConsumerGroupHeartbeat(of.groups, of.consumer_groups, of.rng, keeps_principals=of.keeps_principals),
        Rule(
            heartbeat_with_topics,
            (*HEARTBEAT_CHECKS, Check(AclOperation.DESCRIBE, _TOPIC, None, "topics that the pattern matches")),
        ),
        route=_BY_FIRST_FIELD,
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ApiRow(
        lambda of: ConsumerGroupDescribe(of.groups, of.consumer_groups, of.administration),
        DESCRIBE_WITH_TOPICS,
        route=Elements("group_ids", "groups"),
    ),
    ApiKey.DESCRIBE_GROUPS: ApiRow(
        lambda of: DescribeGroups(of.administration),
        Rule(_describe, (Check(AclOperation.DESCRIBE, _GROUP, _DENIED, "each group"),)),
        route=Elements("groups", "groups"),
    ),
    ApiKey.LIST_GROUPS: ApiRow(
        lambda of: ListGroups(of.administration),
        Rule(_list, (Check(AclOperation.DESCRIBE, _GROUP, None, "each group; or on the cluster, for all"),)),
        route=Whole.EVERY_AGENT,
    ),
    ApiKey.DELETE_GROUPS: ApiRow(
        lambda of: DeleteGroups(of.administration),
        each("groups_names", "results", AclOperation.DELETE, _GROUP, itself),
        deleted_groups,
        Elements("groups_names", "results"),
    ),
}
