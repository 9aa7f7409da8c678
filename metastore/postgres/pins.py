"""Read pins in Postgres.

Place: under long readers; implements metastore.pins.PinApi. The janitor's SQL asks pin_horizon().
Invariant: a pin that ran out is never renewed. If the process dies here, its pins run out.
"""

from __future__ import annotations

import uuid

from metastore.postgres.statement import Pool, Statement
from storage.errors import FencedError

_PIN_READS = Statement("pin_reads", writes=True)
_RENEW_PIN = Statement("renew_pin", writes=True)
_UNPIN_READS = Statement("unpin_reads", writes=True)


class PostgresPins:
    """Implements metastore.pins.PinApi."""

    pool: Pool

    async def pin_reads(self, pin_id: uuid.UUID, holder: str, lease_ms: int) -> None:
        await _PIN_READS.row(self.pool, pin_id=pin_id, holder=holder, lease_ms=lease_ms)

    async def renew_pin(self, pin_id: uuid.UUID, lease_ms: int) -> None:
        (renewed,) = await _RENEW_PIN.row(self.pool, pin_id=pin_id, lease_ms=lease_ms)
        if not renewed:
            raise FencedError(f"read pin ran out: pin_id={pin_id}")

    async def unpin_reads(self, pin_id: uuid.UUID) -> None:
        await _UNPIN_READS.row(self.pool, pin_id=pin_id)
