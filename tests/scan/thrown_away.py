"""A scanned cluster for one trial of a planted bug: its Postgres is dropped afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from tests.metastore.sql_sources import Throwaway
from tests.spark.world import ScanWorld


@dataclass(frozen=True, slots=True)
class ThrownAway:
    """Makes them."""

    server: EmbeddedPostgres
    template: str
    folders: pytest.TempPathFactory

    @asynccontextmanager
    async def world(self) -> AsyncIterator[tuple[ScanWorld, Path]]:
        """The cluster, and a folder for what is next to it."""
        async with Throwaway(self.server, self.template).store() as (url, store):
            folder = self.folders.mktemp("world")
            async with ScanWorld.opened(store, url, folder) as world:
                yield world, folder
