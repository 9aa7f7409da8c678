"""A world with a real Postgres and a compacted topic's planner and cleaner."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.compactor.cleaning.world import CleaningWorld


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str) -> AsyncIterator[CleaningWorld]:
    async with CleaningWorld.running(metastore, metastore_url) as world:
        yield world
