"""Read pins: a long reader's claim on every file that was live when it began.

Place: for whoever reads planned files for longer than the janitor's grace, and must have them all (an export);
merges do without, they leave out what went. Honoured by the janitor, which asks the SQL function
pin_horizon() how far it may delete.
Invariant: while a pin lives, no file that was live when it was taken is deleted. It lives as long as
it is renewed; if its holder dies, it runs out.
"""

from __future__ import annotations

import uuid
from typing import Protocol


class PinApi(Protocol):
    """Take the pin first, plan afterwards."""

    async def pin_reads(self, pin_id: uuid.UUID, holder: str, lease_ms: int) -> None:
        """Take the pin. Idempotent: while it lives, taking it again renews it."""

    async def renew_pin(self, pin_id: uuid.UUID, lease_ms: int) -> None:
        """FencedError for a pin that ran out: files that it protected may be gone. Plan again under a new one."""

    async def unpin_reads(self, pin_id: uuid.UUID) -> None:
        """Give it back. Idempotent."""
