"""`headrace storage grow-commit-shards`: give a running cluster more commit shards.

Place: under cli/storage.py. Decision 77.
Invariant: the count changes in one statement, and never goes down; an interrupted command changed all of it or nothing.
"""

from __future__ import annotations

import asyncio

from headrace.cli.current_metastore import open_current
from headrace.config.settings import Settings
from headrace.metastore.api.agents import COMMIT_SHARDS, COMMIT_SHARDS_MAX
from headrace.metastore.log.features import change_feature
from headrace.metastore.log.loading import load_image
from headrace.storage.errors import InvalidError, UnavailableError

ATTEMPTS = 20
"""The metadata log may change between a look at it and the growth, or a call may hold it up for too long."""

PAUSE_SECONDS = 2.0
"""How long commits pass between two attempts: they wait behind each one."""


async def grow_commit_shards(settings: Settings, shards: int) -> str:
    """Return what was done, as a line. InvalidError for a count that is no doubling, or if an agent does not
    follow growth; UnavailableError if the metastore was too busy each time.
    """
    async with open_current(settings) as metastore:
        reason = "the metadata log keeps changing"
        for _ in range(ATTEMPTS):
            image = await load_image(metastore.cluster)
            before = await metastore.cluster.count_commit_shards()
            if shards == before:
                return f"{COMMIT_SHARDS}={shards}: there are as many already"
            possible = [before << doublings for doublings in range(1, 11) if before << doublings <= COMMIT_SHARDS_MAX]
            if shards not in possible:
                raise InvalidError(f"commit shards grow by doublings: wanted={shards} possible={possible}")
            change_feature(image, COMMIT_SHARDS, shards, allow_downgrade=False)
            try:
                if await metastore.cluster.grow_commit_shards(shards, image.offset):
                    return f"{COMMIT_SHARDS}={shards}: before, there were {before}"
            except UnavailableError as error:
                reason = str(error)
                await asyncio.sleep(PAUSE_SECONDS)
        raise UnavailableError(f"{reason}: repeat the command")
