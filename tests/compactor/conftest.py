"""A world with real Postgres, and the jobs that work in it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.compactor.segment_world import SegmentWorld


@pytest.fixture
async def world(
    metastore: PostgresMetastore, metastore_url: str, request: pytest.FixtureRequest
) -> AsyncIterator[SegmentWorld]:
    """A cluster with keys for its merged files, or without them if the test is marked `keyless`."""
    async with SegmentWorld.running(metastore, metastore_url) as world:
        if not request.node.get_closest_marker("keyless"):
            await world.raise_level()
        yield world
