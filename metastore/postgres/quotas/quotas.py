"""Reports of quota use in Postgres.

Place: under the exchange of each agent; a part of ClusterApi.
Invariant: a report is one row of one agent. Nothing else depends on it: rows that are lost cost half a second of
accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.metastore.postgres.pass_through import PostgresNoun
from headrace.metastore.postgres.statement import Statement

_EXCHANGE_QUOTA_USE = Statement("exchange_quota_use", writes=True)


class PostgresQuotaUse(PostgresNoun):
    """Implements what ClusterApi says of quotas."""

    async def exchange_quota_use(self, node_id: int, report: str) -> Mapping[int, str]:
        return dict(await _EXCHANGE_QUOTA_USE.rows(self.pool, node_id=node_id, report=report))
