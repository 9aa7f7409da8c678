"""Producer ids, and forgetting producers that went away.

Place: InitProducerId takes ids from a leased block, without a metastore call per producer.
Invariant: an id is handed out once in a cluster's life. If the process dies here, the rest of its
block is never used.
"""

from __future__ import annotations

from headrace.metastore.postgres.statement import Pool, Statement
from headrace.storage.errors import InvalidError

BLOCK_MAX = 1_000_000

_ALLOCATE_PRODUCER_IDS = Statement("allocate_producer_ids", writes=True)
_EXPIRE_PRODUCER_STATE = Statement("expire_producer_state", writes=True)


async def allocate_producer_ids(pool: Pool, count: int) -> range:
    """metastore.api.CommitApi.allocate_producer_ids; `count` from 1 to a million."""
    if not 1 <= count <= BLOCK_MAX:
        raise InvalidError(f"producer ids refused: count={count}")
    (first,) = await _ALLOCATE_PRODUCER_IDS.row(pool, count=count)
    return range(first, first + count)


async def expire_producer_state(pool: Pool, producer_id_expiration_ms: int, limit: int) -> int:
    """Forget up to `limit` producers unheard of for that long; how many. Fewer than `limit`: that was all."""
    (expired,) = await _EXPIRE_PRODUCER_STATE.row(pool, expiration_ms=producer_id_expiration_ms, limit=limit)
    return int(expired)
