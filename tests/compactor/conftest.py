"""A world with real Postgres, and the jobs that work in it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.compactor.segment_world import SegmentWorld
from tests.fixtures_clouds import azurite_url, bucket_of, fake_gcs_url

__all__ = ["azurite_url", "fake_gcs_url"]


@pytest.fixture
async def world(
    metastore: PostgresMetastore, metastore_url: str, request: pytest.FixtureRequest
) -> AsyncIterator[SegmentWorld]:
    """A cluster with keys for its merged files, or without them if the test is marked `keyless`. Its bucket is in
    memory, or on the emulator that an indirect parameter names.
    """
    cloud = getattr(request, "param", "memory")
    store = None if cloud == "memory" else bucket_of(cloud, request).open()
    async with SegmentWorld.running(metastore, metastore_url, store=store) as world:
        if not request.node.get_closest_marker("keyless"):
            await world.raise_level()
        yield world
