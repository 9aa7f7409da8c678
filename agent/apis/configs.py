"""The APIs about configs: the resource's type says what is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Any

from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse

from headrace.agent.access.audited_changes import Change, of_entities
from headrace.agent.access.authorization.ask import GatedRequest, split
from headrace.agent.access.authorization.operations import CLUSTER_NAME, AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, Rule, Serve, whole
from headrace.agent.apis.api_row import ApiRow
from headrace.agent.apis.parts import BrokerParts
from headrace.agent.apis.shared_rules import TABLE_NAMES, foreign_tables
from headrace.agent.peers.forwarding.routes import of_brokers
from headrace.agent.topics.configs.alter import AlterConfigs, IncrementalAlterConfigs
from headrace.agent.topics.configs.describe import DescribeConfigs
from headrace.agent.topics.configs.list_resources import ListConfigResources
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import Response

_BY_TYPE = {
    2: AclResource.TOPIC,
    4: AclResource.CLUSTER,
    8: AclResource.CLUSTER,
    16: AclResource.CLUSTER,
    32: AclResource.GROUP,
}
"""ConfigResource.Type: topic, broker, broker logger, client metrics, group. Handlers refuse other types."""
_NAMES = {2: "TOPIC", 4: "BROKER", 8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}
"""The same types, as the audit log names them."""


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


@of_entities
def configs(request: IncrementalAlterConfigsRequest, response: IncrementalAlterConfigsResponse) -> Iterator[Change]:
    asked = {
        (resource.resource_type, resource.resource_name): ",".join(config.name for config in resource.configs)
        for resource in request.resources
    }
    for resource in response.responses:
        kind = _NAMES.get(resource.resource_type, resource.resource_type)
        names = asked.get((resource.resource_type, resource.resource_name))
        yield Change(f"{kind}:{resource.resource_name}", resource.error_code, f"configs {names}")


_ALTER = Rule(
    _each(AclOperation.ALTER_CONFIGS, "responses"),
    (
        *_checks(AclOperation.ALTER_CONFIGS),
        Check(AclOperation.ALTER_CONFIGS, AclResource.TOPIC, FAILED[AclResource.TOPIC], TABLE_NAMES),
    ),
)
CONFIG_ROWS: dict[int, ApiRow[BrokerParts]] = {
    ApiKey.DESCRIBE_CONFIGS: ApiRow(
        lambda of: DescribeConfigs(of.cluster, of.configs, lambda: of.shared.is_set),
        Rule(_each(AclOperation.DESCRIBE_CONFIGS, "results"), _checks(AclOperation.DESCRIBE_CONFIGS)),
        route=of_brokers("results"),
    ),
    ApiKey.ALTER_CONFIGS: ApiRow(lambda of: AlterConfigs(of.change, of.configs), _ALTER, configs),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiRow(
        lambda of: IncrementalAlterConfigs(of.change, of.configs), _ALTER, configs, of_brokers("responses")
    ),
    ApiKey.LIST_CONFIG_RESOURCES: ApiRow(
        lambda of: ListConfigResources(of.cluster), whole(AclOperation.DESCRIBE_CONFIGS, AclResource.CLUSTER)
    ),
}
