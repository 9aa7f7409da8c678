"""The handlers of config requests by API key.

Place: one part of agent/handlers.py's table.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.agent.admin.configs.alter import AlterConfigs, IncrementalAlterConfigs
from headrace.agent.admin.configs.describe import DescribeConfigs
from headrace.agent.admin.configs.list_resources import ListConfigResources
from headrace.agent.admin.log_change import LogChange
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import RequestHandler


def config_handlers(
    change: LogChange, configs: EffectiveConfigs, is_shared: Callable[[], bool] = lambda: False
) -> dict[int, RequestHandler]:
    """By API key. `is_shared`: whether clients may see all agents as one."""
    return {
        ApiKey.DESCRIBE_CONFIGS: DescribeConfigs(change.cluster, configs, is_shared),
        ApiKey.ALTER_CONFIGS: AlterConfigs(change, configs),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: IncrementalAlterConfigs(change, configs),
        ApiKey.LIST_CONFIG_RESOURCES: ListConfigResources(change.cluster),
    }
