"""The audit trail of remote segments, for tools: from the metastore, and from the bucket that the settings name.

Place: under `headrace segments history` and `headrace dump-log --remote-log-metadata-decoder --audit`.
Invariant: without a bucket the trail is read while all of it is in the metastore; else InvalidError names the setting.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.config.settings import Settings
from headrace.metastore.api.segment_logs import SegmentLogApi
from headrace.metastore.audit_trail.reader import AuditReader
from headrace.storage.clock import SystemClock
from headrace.storage.objects.open import StoreOptions, open_store


@asynccontextmanager
async def trail_reader(logs: SegmentLogApi, settings: Settings) -> AsyncIterator[AuditReader]:
    """A reader that lasts as long as the block."""
    if not settings.bucket:
        yield AuditReader(logs, None)
        return
    store = open_store(settings.bucket, StoreOptions.of(settings), clock=SystemClock(), rng=random.Random())
    try:
        yield AuditReader(logs, store)
    finally:
        await store.close()
