"""The bucket and the metastore of a Python worker of Spark.

Place: under source.py and cleaning_tasks.py, in Spark's Python workers.
Invariant: settings come from HEADRACE_* variables of the worker, never from Spark's plans or logs.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from headrace.config.load import load
from headrace.config.settings import Settings
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.bucket_properties import read_bucket_id
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.store import ObjectStore
from headrace.storage.objects.throttled import ThrottledStore


@asynccontextmanager
async def throttled_store(
    clock: Clock, rng: random.Random, bucket_id: str, *, bytes_per_s: float, requests_per_s: float
) -> AsyncIterator[ObjectStore]:
    """The bucket, at a task's rates. InvalidError if it has another id; empty: the metastore knows none yet."""
    settings = _settings()
    options = StoreOptions.of(settings)
    store = ThrottledStore(
        open_store(settings.bucket, options, clock=clock, rng=rng),
        bytes_per_s=bytes_per_s,
        requests_per_s=requests_per_s,
        clock=clock,
    )
    try:
        if bucket_id and str(await read_bucket_id(store)) != bucket_id:
            raise InvalidError(
                f"the driver has another bucket than this executor: correct HEADRACE_BUCKET: id={bucket_id}"
            )
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def one_connection() -> AsyncIterator[PostgresMetastore]:
    """The metastore, of the driver's environment."""
    settings = msgspec.structs.replace(_settings(), metastore_pool_size=1)
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        yield metastore
    finally:
        await metastore.close()


def _settings() -> Settings:
    return load(environ=os.environ)
