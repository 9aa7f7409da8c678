"""Removes old rows from the metastore: done by every agent in turn, in small steps.

Place: one task per agent on its event loop. Each call is chunked, only tries its locks, and does
nothing if another agent has just done it.
Invariant: no answer depends on it; if it stops, tables grow and the slots' old rows stay longer. After an
interruption, the next call continues.
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
    """Runs until cancelled. A failure is logged and tried again; random pauses spread the agents of a cluster."""
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
