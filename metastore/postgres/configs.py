"""Reading the cluster's configs (metastore/configs.py). If the process dies here nothing is lost."""

from __future__ import annotations

from headrace.metastore.postgres.statement import Pool, Statement

_CLUSTER_CONFIGS = Statement("cluster_configs", writes=False)


class PostgresConfigs:
    """Mixed into PostgresMetastore."""

    pool: Pool

    async def cluster_configs(self) -> dict[str, str]:
        """metastore.configs.ConfigApi.cluster_configs."""
        return dict(await _CLUSTER_CONFIGS.rows(self.pool))
