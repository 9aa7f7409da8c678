"""What agents used of limits that they share: a report of each, for the others.

Place: agent/access/quotas/exchange.py reports and reads.
Invariant: a report says totals in a form that only agents read; the metastore keeps the newest of each agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class QuotaUseApi(Protocol):
    """Reports of live agents."""

    async def exchange_quota_use(self, node_id: int, report: str) -> Mapping[int, str]:
        """Store this agent's report; those of the others that are younger than 5 s, by node id. Idempotent."""
