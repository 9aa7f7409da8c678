"""Rules of the APIs about groups, except offsets."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.ask import GatedRequest, split
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rules.rule import FAILED, Check, Rule, each, group_of, itself, whole
from headrace.protocol.request import Response

_GROUP, _TOPIC = AclResource.GROUP, AclResource.TOPIC
_DENIED = FAILED[_GROUP]
_KEY_TYPES = (_GROUP, AclResource.TRANSACTIONAL_ID)
"""Types of keys by FindCoordinator's numbers."""
_FIRST_FIND_OF_SEVERAL = 4
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

    def seen(entity: Any) -> Any:
        groups = tuple(one for one in entity.groups if ask.access.allows(AclOperation.DESCRIBE, _GROUP, one.group_id))
        return dataclasses.replace(entity, groups=groups)

    return ask.pass_on_changed(seen)


def _operations(ask: GatedRequest, group: Any) -> Any:
    """Add the operations that the client may do, if it asked for them."""
    if not getattr(ask.entity, "include_authorized_operations", False) or group.error_code:
        return group
    return dataclasses.replace(group, authorized_operations=ask.access.operations(_GROUP, group.group_id))


def _describe(ask: GatedRequest) -> Awaitable[Response]:
    def change(entity: Any) -> Any:
        return dataclasses.replace(entity, groups=tuple(_operations(ask, group) for group in entity.groups))

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

    def shown(group: Any) -> Any:
        kinds = (getattr(member, kind, None) for member in group.members for kind in _ASSIGNMENTS)
        names = {each.topic_name for assignment in kinds if assignment for each in assignment.topic_partitions}
        if all(ask.allows(AclOperation.DESCRIBE, _TOPIC, name) for name in sorted(names)):
            return _operations(ask, group)
        refused = ask.refused("groups", group.group_id, FAILED[_TOPIC])
        return dataclasses.replace(refused, error_message=_HIDDEN_TOPICS)

    return split(
        ask,
        "group_ids",
        "groups",
        lambda group_id: ask.allows(AclOperation.DESCRIBE, _GROUP, group_id),
        lambda group_id: ask.refused("groups", group_id, _DENIED),
        lambda entity: dataclasses.replace(entity, groups=tuple(map(shown, entity.groups))),
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
