"""Rules of the APIs about configs: the resource's type says what is asked."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from headrace.agent.access.authorization.ask import GatedRequest, split
from headrace.agent.access.authorization.operations import CLUSTER_NAME, AclOperation, AclResource
from headrace.agent.access.authorization.rules.rule import FAILED, Check, Rule, Serve, whole
from headrace.protocol.request import Response

_BY_TYPE = {
    2: AclResource.TOPIC,
    4: AclResource.CLUSTER,
    8: AclResource.CLUSTER,
    16: AclResource.CLUSTER,
    32: AclResource.GROUP,
}
"""ConfigResource.Type: topic, broker, broker logger, client metrics, group. Handlers refuse other types."""


def _each(operation: AclOperation, answered: str) -> Serve:
    def is_allowed(ask: GatedRequest, resource: Any) -> bool:
        resource_type = _BY_TYPE.get(resource.resource_type)
        if resource_type is None:
            return True
        name = CLUSTER_NAME if resource_type is AclResource.CLUSTER else resource.resource_name
        return ask.allows(operation, resource_type, name)

    def serve(ask: GatedRequest) -> Awaitable[Response]:
        return split(
            ask,
            "resources",
            answered,
            lambda resource: is_allowed(ask, resource),
            lambda resource: ask.refused(answered, resource, FAILED[_BY_TYPE[resource.resource_type]]),
        )

    return serve


def _checks(operation: AclOperation) -> tuple[Check, ...]:
    return (
        Check(operation, AclResource.TOPIC, FAILED[AclResource.TOPIC], "each topic"),
        Check(operation, AclResource.GROUP, FAILED[AclResource.GROUP], "each group"),
        Check(operation, AclResource.CLUSTER, FAILED[AclResource.CLUSTER], "each other resource"),
    )


ALTER = Rule(_each(AclOperation.ALTER_CONFIGS, "responses"), _checks(AclOperation.ALTER_CONFIGS))
DESCRIBE_CONFIGS = Rule(_each(AclOperation.DESCRIBE_CONFIGS, "results"), _checks(AclOperation.DESCRIBE_CONFIGS))
LIST_CONFIG_RESOURCES = whole(AclOperation.DESCRIBE_CONFIGS, AclResource.CLUSTER)
