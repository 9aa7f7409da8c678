"""Reading the agents' last heartbeats (metastore/agent_leases.py). If the process dies here nothing is lost."""

from __future__ import annotations

from headrace.metastore.agent_leases import AgentLease
from headrace.metastore.postgres.statement import Pool, Statement

_AGENT_LEASES = Statement("agent_leases", writes=False)


class PostgresAgentLeases:
    """Mixed into PostgresMetastore."""

    pool: Pool

    async def agent_leases(self) -> list[AgentLease]:
        """metastore.agent_leases.AgentLeaseApi.agent_leases."""
        return [AgentLease(*row) for row in await _AGENT_LEASES.rows(self.pool)]
