"""One agent's config handlers on a fake metastore, asked as clients ask."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest

from headrace.agent.cluster.cluster import Cluster
from headrace.agent.cluster.log_change import LogChange
from headrace.agent.topics.configs.change_requests import AlterConfigs, IncrementalAlterConfigs, ListConfigResources
from headrace.agent.topics.configs.describe import DescribeConfigs
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import EffectiveConfigs
from tests.agent.client_calls import call
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.manual_clock import ManualClock
from tests.nouns import nouns

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
NODE = "7"

Config = tuple[str, str | None]
Change = tuple[str, int, str | None]


class ConfigsWorld:
    """One agent's config handlers on a fake metastore, with topic `orders`."""

    def __init__(self, clock: ManualClock, settings: Settings | None = None) -> None:
        self.api = FakeClusterApi(clock)
        self.api.add_topic("orders", configs={"retention.ms": "1000"})
        self.cluster: Cluster = an_agent(self.api)
        change = LogChange(self.cluster, nouns(self.api).cluster, clock)
        configs = EffectiveConfigs(settings or Settings())
        self.describe_configs = DescribeConfigs(self.cluster, configs)
        self.alter_configs = AlterConfigs(change, configs)
        self.incremental = IncrementalAlterConfigs(change, configs)
        self.list_resources = ListConfigResources(self.cluster)

    async def join(self) -> None:
        """The agent gets node id 7."""
        self.api.add_agent(int(NODE))
        self.cluster.membership.node_id = int(NODE)
        await self.cluster.catch_up()

    async def describe(self, kind: int, name: str, *keys: str, version: int = 4, **flags: bool) -> Any:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
        )
        message = DescribeConfigsRequest(
            resources=[resource], **{"include_synonyms": True, "include_documentation": version >= 3} | flags
        )
        (result,) = (await call(self.describe_configs, message, version)).results
        return result

    async def values(self, kind: int, name: str, *keys: str) -> dict[str, tuple[str | None, int]]:
        result = await self.describe(kind, name, *keys)
        assert result.error_code == 0, result.error_message
        return {config.name: (config.value, config.config_source) for config in result.configs}

    async def change(
        self, *resources: tuple[int, str, list[Change]], validate_only: bool = False, version: int = 1
    ) -> Any:
        kind = IncrementalAlterConfigsRequest.AlterConfigsResource
        message = IncrementalAlterConfigsRequest(
            resources=[
                kind(
                    resource_type=number,
                    resource_name=name,
                    configs=[
                        kind.AlterableConfig(name=config, config_operation=operation, value=value)
                        for config, operation, value in changes
                    ],
                )
                for number, name, changes in resources
            ],
            validate_only=validate_only,
        )
        return (await call(self.incremental, message, version)).responses

    async def replace(self, kind: int, name: str, *configs: Config, version: int = 2) -> Any:
        resource = AlterConfigsRequest.AlterConfigsResource
        message = AlterConfigsRequest(
            resources=[
                resource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[resource.AlterableConfig(name=config, value=value) for config, value in configs],
                )
            ],
            validate_only=False,
        )
        (response,) = (await call(self.alter_configs, message, version)).responses
        return response

    def own(self, name: str = "orders") -> dict[str, str]:
        return dict(self.cluster.image.topic_configs(name))
