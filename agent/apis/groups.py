"""Rules of the APIs about groups, except offsets."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.ask import DENIED_UNITS, GatedRequest, split
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, Rule, each, group_of, itself, whole
from headrace.agent.limits.work_slices import ELEMENT_UNITS, TOPIC_UNITS, WorkSlices
from headrace.protocol.request import Response

_GROUP, _TOPIC = AclResource.GROUP, AclResource.TOPIC
_DENIED = FAILED[_GROUP]
_KEY_TYPES = (_GROUP, AclResource.TRANSACTIONAL_ID)
"""Types of keys by FindCoordinator's numbers."""
_FIRST_FIND_OF_SEVERAL = 4
_OPERATIONS_UNITS = 30
"""What it costs to find all operations that a client may do with a group."""
_ASSIGNMENTS = ("assignment", "target_assignment")
"""The assignment of a member; share groups have no target."""
_HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


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


def _list(ask: GatedRequest) -> Awaitable[Response]:
    if ask.access.allows(AclOperation.DESCRIBE, AclResource.CLUSTER):
        return ask.pass_on()

    async def seen(entity: Any) -> Any:
        groups = await ask.seen(_GROUP, entity.groups, lambda one: str(one.group_id), WorkSlices())
        return dataclasses.replace(entity, groups=groups)

    return ask.pass_on_changed(seen)


def _operations(ask: GatedRequest, group: Any) -> Any:
    """Add the operations that the client may do, if it asked for them."""
    if not getattr(ask.entity, "include_authorized_operations", False) or group.error_code:
        return group
    return dataclasses.replace(group, authorized_operations=ask.access.operations(_GROUP, group.group_id))


def _describe(ask: GatedRequest) -> Awaitable[Response]:
    async def change(entity: Any) -> Any:
        groups = await WorkSlices().each(partial(_operations, ask), entity.groups, _OPERATIONS_UNITS)
        return dataclasses.replace(entity, groups=groups)

    return split(
        ask,
        "groups",
        "groups",
        lambda group_id: ask.allows(AclOperation.DESCRIBE, _GROUP, group_id),
        lambda group_id: ask.refused("groups", group_id, _DENIED),
        change,
    )


def _describe_with_topics(ask: GatedRequest) -> Awaitable[Response]:
    """Describe as Kafka does: a group with a topic that the client may not describe is not described at all."""

    async def shown(group: Any, slices: WorkSlices) -> Any:
        names = set[str]()
        for member in group.members:
            kinds = filter(None, (getattr(member, kind, None) for kind in _ASSIGNMENTS))
            found = [each.topic_name for assignment in kinds for each in assignment.topic_partitions]
            names.update(found)
            await slices.did(ELEMENT_UNITS + len(found))
        for name in await slices.in_order(list(names)):
            if not ask.allows(AclOperation.DESCRIBE, _TOPIC, name):
                break
            await slices.did(TOPIC_UNITS)
        else:
            await slices.did(_OPERATIONS_UNITS)
            return _operations(ask, group)
        await slices.did(DENIED_UNITS)
        refused = ask.refused("groups", group.group_id, FAILED[_TOPIC])
        return dataclasses.replace(refused, error_message=_HIDDEN_TOPICS)

    async def change(entity: Any) -> Any:
        slices = WorkSlices()
        return dataclasses.replace(entity, groups=tuple([await shown(group, slices) for group in entity.groups]))

    return split(
        ask,
        "group_ids",
        "groups",
        lambda group_id: ask.allows(AclOperation.DESCRIBE, _GROUP, group_id),
        lambda group_id: ask.refused("groups", group_id, _DENIED),
        change,
    )


def _read_group(ask: GatedRequest) -> Awaitable[Response]:
    """The handler asks for topics, which the request names by id, or not at all."""
    if not ask.allows(AclOperation.READ, _GROUP, ask.entity.group_id or ""):
        return ask.refuse(_DENIED)
    return ask.pass_on()


def _heartbeat_with_topics(ask: GatedRequest) -> Awaitable[Response]:
    if not ask.allows(AclOperation.READ, _GROUP, ask.entity.group_id):
        return ask.refuse(_DENIED)
    names = ask.entity.subscribed_topic_names or ()
    if not all(ask.allows(AclOperation.DESCRIBE, _TOPIC, name) for name in dict.fromkeys(names)):
        return ask.refuse(FAILED[_TOPIC])
    return ask.pass_on()


MEMBER = whole(AclOperation.READ, _GROUP, group_of)
_EACH_TOPIC: ErrorCode = FAILED[_TOPIC]
FIND_COORDINATOR = Rule(
    _find_coordinator,
    tuple(Check(AclOperation.DESCRIBE, kind, FAILED[kind], "each key") for kind in _KEY_TYPES),
)
_HEARTBEAT_CHECKS = (
    Check(AclOperation.READ, _GROUP, _DENIED),
    Check(AclOperation.DESCRIBE, _TOPIC, _EACH_TOPIC, "all subscribed names"),
)
CONSUMER_GROUP_HEARTBEAT = Rule(
    _heartbeat_with_topics,
    (*_HEARTBEAT_CHECKS, Check(AclOperation.DESCRIBE, _TOPIC, None, "topics that the pattern matches")),
)
SHARE_GROUP_HEARTBEAT = Rule(_heartbeat_with_topics, _HEARTBEAT_CHECKS)
CONSUMER_GROUP_DESCRIBE = SHARE_GROUP_DESCRIBE = Rule(
    _describe_with_topics,
    (
        Check(AclOperation.DESCRIBE, _GROUP, _DENIED, "each group"),
        Check(AclOperation.DESCRIBE, _TOPIC, _EACH_TOPIC, "all topics that are assigned in the group"),
    ),
)
SHARE_FETCH = Rule(
    _read_group,
    (
        Check(AclOperation.READ, _GROUP, _DENIED),
        Check(AclOperation.READ, _TOPIC, _EACH_TOPIC, "each topic"),
    ),
)
DESCRIBE_GROUPS = Rule(_describe, (Check(AclOperation.DESCRIBE, _GROUP, _DENIED, "each group"),))
LIST_GROUPS = Rule(_list, (Check(AclOperation.DESCRIBE, _GROUP, None, "each group; or on the cluster, for all"),))
DELETE_GROUPS = each("groups_names", "results", AclOperation.DELETE, _GROUP, itself)
