"""The tables of a scanned cluster, per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from tests.scan.conftest import thrown_away, world
from tests.spark.world import ScanWorld
from tests.tables.registry import FakeRegistry
from tests.tables.world import Tables

__all__ = ["thrown_away", "world"]


@pytest.fixture
def tables(world: ScanWorld, tmp_path: Path) -> Tables:
    return Tables(world, tmp_path / "iceberg")


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry().running() as running:
        yield running
