"""Producer ids: an agent assigns them from a block that the metastore gave to it alone.

Place: under InitProducerId, and under EndTxn when a producer has used up its epochs.
Invariant: an id is assigned only once. The unused rest of a crashed agent's block is lost. A producer is younger than
its id's block by BLOCK_SECONDS at most, so that a commit can tell from the block how old the producer is
(decisions/0012).
"""

from __future__ import annotations

import asyncio

from headrace.metastore.api.commit import CommitApi
from headrace.storage.clock import Clock

BLOCK_IDS = 1_000
BLOCK_SECONDS = 600.0
"""What is left of a block after this time is not used: half of producer_id_block_ms (allocate_producer_ids.sql)."""


class ProducerIds:
    """Assigns ids from this agent's block."""

    def __init__(self, api: CommitApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._block = range(0)
        self._asked_at = clock.monotonic()
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """An id that is never assigned again. Errors as allocate_producer_ids."""
        async with self._refill:
            now = self._clock.monotonic()
            if not self._block or now - self._asked_at >= BLOCK_SECONDS:
                self._asked_at = now  # before the metastore leases it: the block is younger than we believe
                self._block = await self._api.allocate_producer_ids(BLOCK_IDS)
            producer_id, self._block = self._block[0], self._block[1:]
            return producer_id
