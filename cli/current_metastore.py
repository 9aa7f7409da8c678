"""The metastore for a command that changes it, while agents run or not.

Place: under `headrace storage rotate-zone-secret`, `seal-secrets` and `grow-commit-shards`.
Invariant: if the settings name the bucket, it confirms that this server is the metastore before anything is changed. A
command without a bucket changes what its address reaches; its output is true of that server only.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.config.settings import Settings
from headrace.metastore.life.following import FollowedLife
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.objects.open import StoreOptions, open_store


@asynccontextmanager
async def open_current(settings: Settings) -> AsyncIterator[PostgresMetastore]:
    """Errors as PostgresMetastore.open; UnavailableError if the bucket names another server as the metastore."""
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        if settings.bucket:
            clock, rng = SystemClock(), random.Random()
            store = open_store(settings.bucket, StoreOptions.of(settings), clock=clock, rng=rng)
            try:
                await FollowedLife(metastore.life, store, clock, rng).require_current()
            finally:
                await store.close()
        yield metastore
    finally:
        await metastore.close()
