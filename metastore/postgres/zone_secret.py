"""Reading the cluster's secret (metastore/zone_secret.py). If the process dies here nothing is lost."""

from __future__ import annotations

from headrace.metastore.postgres.statement import Pool, Statement

_ZONE_SECRET = Statement("zone_secret", writes=False)


class PostgresZoneSecret:
    """Mixed into PostgresMetastore."""

    pool: Pool

    async def zone_secret(self) -> bytes:
        """metastore.zone_secret.ZoneSecretApi.zone_secret."""
        (secret,) = await _ZONE_SECRET.row(self.pool)
        return bytes(secret)
