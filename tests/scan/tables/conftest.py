"""A cluster on a real Postgres, and its tables, per test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.cluster_properties import write_cluster_id
from tests.scan.tables.world import Tables
from tests.spark.world import ScanWorld


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str, tmp_path: Path) -> AsyncIterator[ScanWorld]:
    world = ScanWorld(metastore, metastore_url, tmp_path / "bucket")
    await world.begin()
    await write_cluster_id(world.store, metastore.cluster_id)
    yield world
    await world.service.close()


@pytest.fixture
def tables(world: ScanWorld, tmp_path: Path) -> Tables:
    return Tables(world, tmp_path / "iceberg")
