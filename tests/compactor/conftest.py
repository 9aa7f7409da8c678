"""A world with real Postgres, and the job that works in it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.compactor.world import CompactionWorld


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str) -> AsyncIterator[CompactionWorld]:
    world = CompactionWorld(metastore, metastore_url)
    await world.begin()
    yield world
    await world.service.close()
