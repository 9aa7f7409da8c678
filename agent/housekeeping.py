"""What keeps the metastore from growing: done by every agent in turn, a little at a time.

Place: one task per agent, beside everything else on its loop. Each call is chunked, tries its locks
only, and does nothing when another agent has just done it.
Invariant: nothing here is needed for an answer to be right; if it stops, tables grow and the slots'
old rows stay longer. If the process dies in the middle, the next call goes on.
"""

from __future__ import annotations

import logging
import random

from headrace.metastore.api.housekeeping import HousekeepingApi
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
CHUNK_ROWS = 1_000


async def keep_house(metastore: HousekeepingApi, clock: Clock, rng: random.Random) -> None:
    """For ever. A failure is logged and tried again; the agents of a cluster spread out by chance."""
    while True:
        await clock.sleep(INTERVAL_SECONDS * (0.5 + rng.random()))
        try:
            while await _one_round(metastore):
                await clock.sleep(0)
        except HeadraceError as error:
            logger.warning("housekeeping failed: error=%s", error)


async def _one_round(metastore: HousekeepingApi) -> bool:
    """Whether there is more to do."""
    await metastore.rotate_log_slots()
    expired = await metastore.expire_producer_state(CHUNK_ROWS)
    purged = await metastore.purge_deleted_partitions(CHUNK_ROWS)
    offsets = await metastore.expire_group_offsets(CHUNK_ROWS)
    jobs = await metastore.prune_jobs(CHUNK_ROWS)
    return max(expired, offsets, jobs) >= CHUNK_ROWS or purged > 0
