"""A world with real Postgres, and the job that works in it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.compactor.world import CompactionWorld
from tests.metastore.segment_keys import with_keys


@pytest.fixture
async def world(
    metastore: PostgresMetastore, metastore_url: str, request: pytest.FixtureRequest
) -> AsyncIterator[CompactionWorld]:
    if not request.node.get_closest_marker("keyless"):
        with_keys(metastore_url)
    world = CompactionWorld(metastore, metastore_url)
    await world.begin()
    yield world
    await world.service.close()
