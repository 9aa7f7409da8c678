"""The life of the metastore in a process without roles: Spark's driver, an export, a command.

Place: opened next to the connections, by scan/cluster.py, compactor/spark/application.py and commands.
Invariant: as watch.py: the process names a life only while bucket and server agree on it. It begins and records none,
because it may be of another version than the agents, or have the right to read the bucket only; so on a promoted
server it waits for an agent. What such a process acknowledges, it acknowledges after `require_current`: an old primary
that stays up accepts every call, and only the bucket knows that its life is over.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from headrace.metastore.api.life import LifeApi
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.verdict import LifeVerdict
from headrace.metastore.life.watch import REASONS, LifeWatch
from headrace.storage.clock import Clock
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.store import ObjectStore


class FollowedLife:
    """The life that these connections name."""

    def __init__(self, api: LifeApi, store: ObjectStore, clock: Clock, rng: random.Random) -> None:
        self.keeper = LifeKeeper(api, store, clock, rng, begins=False)

    async def require_current(self) -> int:
        """Compare now, and return the life. UnavailableError unless the server is the metastore; else as LifeKeeper."""
        await self.keeper.check()
        self.require_newest()
        return self.keeper.life

    def require_newest(self) -> None:
        """UnavailableError if the newest check found that the server is not the metastore."""
        if (verdict := self.keeper.verdict) is not LifeVerdict.CURRENT:
            raise UnavailableError(f"this Postgres may not be used: {REASONS[verdict]}: verdict={verdict.value}")


@asynccontextmanager
async def follow_life(
    api: LifeApi, store: ObjectStore, clock: Clock, rng: random.Random
) -> AsyncIterator[FollowedLife]:
    """Compare at once, then every CHECK_SECONDS until the context is left. Errors as FollowedLife.require_current."""
    followed = FollowedLife(api, store, clock, rng)
    watch = LifeWatch(followed.keeper, clock, CollectorRegistry(), notes_position=lambda: False)
    await watch.start()
    try:
        followed.require_newest()
        yield followed
    finally:
        await watch.stop()
