"""Rules of the APIs about configs: the resource's type says what is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any

from headrace.agent.access.authorization.ask import GatedRequest, split
from headrace.agent.access.authorization.operations import CLUSTER_NAME, AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, Rule, Serve, whole
from headrace.config.table_configs import NAME, default_name
from headrace.protocol.request import Response

_BY_TYPE = {
    2: AclResource.TOPIC,
    4: AclResource.CLUSTER,
    8: AclResource.CLUSTER,
    16: AclResource.CLUSTER,
    32: AclResource.GROUP,
}
"""ConfigResource.Type: topic, broker, broker logger, client metrics, group. Handlers refuse other types."""
TABLE_NAMES = "a topic with the name of each `table.name` that is not its topic's own"


def foreign_tables(ask: GatedRequest, topic: str, configs: Iterable[Any]) -> list[str]:
    """Return the names of tables that the configs of a request give a topic, without its own and the one that is set
    already. A client may use such a name if it may do the same to a topic of this name.
    """
    own = "", default_name(topic), ask.image.topic_configs(topic).get(NAME)
    given = [(each.value or "").strip() for each in configs if each.name == NAME]
    return [name for name in given if name not in own]


def _each(operation: AclOperation, answered: str) -> Serve:
    def is_allowed(ask: GatedRequest, resource: Any) -> bool:
        resource_type = _BY_TYPE.get(resource.resource_type)
        if resource_type is None:
            return True
        name = CLUSTER_NAME if resource_type is AclResource.CLUSTER else resource.resource_name
        names = [name]
        if resource_type is AclResource.TOPIC and operation is AclOperation.ALTER_CONFIGS:
            names += foreign_tables(ask, name, resource.configs)
        return all(ask.allows(operation, resource_type, each) for each in names)

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


ALTER = Rule(
    _each(AclOperation.ALTER_CONFIGS, "responses"),
    (
        *_checks(AclOperation.ALTER_CONFIGS),
        Check(AclOperation.ALTER_CONFIGS, AclResource.TOPIC, FAILED[AclResource.TOPIC], TABLE_NAMES),
    ),
)
DESCRIBE_CONFIGS = Rule(_each(AclOperation.DESCRIBE_CONFIGS, "results"), _checks(AclOperation.DESCRIBE_CONFIGS))
LIST_CONFIG_RESOURCES = whole(AclOperation.DESCRIBE_CONFIGS, AclResource.CLUSTER)
