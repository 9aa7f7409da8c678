"""A scanned cluster on a real Postgres per test, and clusters that are thrown away, for planted bugs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.fixtures_clouds import azurite_url, bucket_of, fake_gcs_url
from tests.metastore.sql_sources import Throwaway
from tests.scan.thrown_away import ThrownAway
from tests.spark.world import ScanWorld

__all__ = ["azurite_url", "fake_gcs_url"]


@pytest.fixture
async def world(
    metastore: PostgresMetastore, metastore_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[ScanWorld]:
    """Files in a directory, or on the emulator that an indirect parameter names."""
    cloud = getattr(request, "param", "directory")
    bucket = None if cloud == "directory" else bucket_of(cloud, request)
    async with ScanWorld.opened(metastore, metastore_url, tmp_path, bucket) as world:
        yield world


@pytest.fixture
def thrown_away(throwaway: Throwaway, tmp_path_factory: pytest.TempPathFactory) -> ThrownAway:
    return ThrownAway(throwaway, tmp_path_factory)
