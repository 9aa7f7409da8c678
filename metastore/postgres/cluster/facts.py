"""What holds for the whole cluster: broker configs set at run time, the agents' shared secret.

Place: background workers, which follow no metadata log, ask for the configs now and then; each agent reads
the secret once, when it starts.
Invariant: only the secret is written here. The configs are the log's own projection, written with its records.
"""

from __future__ import annotations

from headrace.metastore.api.zone_secret import Rotation, ZoneSecret
from headrace.metastore.postgres.statement import Pool, Statement

_CLUSTER_CONFIGS = Statement("cluster_configs", writes=False)
_ZONE_SECRET = Statement("zone_secret", writes=False)
_ROTATE_ZONE_SECRET = Statement("rotate_zone_secret", writes=True)


class PostgresClusterFacts:
    """Implements ConfigApi and ZoneSecretApi."""

    pool: Pool

    async def cluster_configs(self) -> dict[str, str]:
        return dict(await _CLUSTER_CONFIGS.rows(self.pool))

    async def zone_secret(self) -> ZoneSecret:
        own, other = await _ZONE_SECRET.row(self.pool)
        return ZoneSecret(bytes(own), None if other is None else bytes(other))

    async def rotate_zone_secret(self) -> Rotation:
        step, waits_for = await _ROTATE_ZONE_SECRET.row(self.pool)
        return Rotation(step, tuple(waits_for))
