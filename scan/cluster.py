"""The connections of a scan: metastore and bucket of one cluster.

Place: composes a process: Spark's driver opens both to plan, its executors only the bucket; so does `headrace export`.
Invariant: the bucket is the one that the metastore names, and the bucket says that this server is the metastore, or
nothing is read or written. It is asked again every 2 seconds: no call that writes, a read pin included, is made to an
old primary (metastore/life/following.py).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.life.following import FollowedLife, follow_life
from headrace.metastore.life.own_bucket import require_bucket
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.store import ObjectStore


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """What an executor needs to read segment files, apart from credentials, which come from its environment."""

    url: str
    options: StoreOptions

    @classmethod
    def of(cls, settings: Settings) -> BucketAddress:
        return cls(settings.bucket, StoreOptions.of(settings))

    def open(self, clock: Clock, rng: random.Random) -> ObjectStore:
        """The store; errors as open_store."""
        return open_store(self.url, self.options, clock=clock, rng=rng)


@dataclass(frozen=True, slots=True)
class ScannedCluster:
    """Open connections. `rng` and `clock` are the process's."""

    metastore: Metastore
    store: ObjectStore
    clock: Clock
    rng: random.Random
    life: FollowedLife | None = None
    """None: the process compares the life for all of its connections (the role `tables`)."""


@asynccontextmanager
async def open_cluster(settings: Settings) -> AsyncIterator[ScannedCluster]:
    """Both connections, checked. Errors as PostgresMetastore.open, require_bucket and follow_life."""
    clock, rng = SystemClock(), random.Random()
    small = msgspec.structs.replace(settings, metastore_pool_size=1)
    metastore = await PostgresMetastore.open(settings.metastore_url, small)
    try:
        store = BucketAddress.of(settings).open(clock, rng)
        try:
            await require_bucket(metastore.life, store, settings.bucket)
            async with follow_life(metastore.life, store, clock, rng) as life:
                yield ScannedCluster(metastore, store, clock, rng, life)
        finally:
            await store.close()
    finally:
        await metastore.close()
