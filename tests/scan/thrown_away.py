"""A scanned cluster for one trial of a planted bug: its Postgres is dropped afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.metastore.sql_sources import Throwaway
from tests.planted import Trial
from tests.spark.world import ScanWorld


@dataclass(frozen=True, slots=True)
class ThrownAway:
    """Makes them."""

    databases: Throwaway
    folders: pytest.TempPathFactory

    @asynccontextmanager
    async def world(self) -> AsyncIterator[tuple[ScanWorld, Path]]:
        """The cluster, and a folder for what is next to it."""
        async with self.databases.store() as (url, store):
            folder = self.folders.mktemp("world")
            async with ScanWorld.opened(store, url, folder) as world:
                yield world, folder

    async def look_for(
        self,
        trial: Trial,
        history: Callable[[ScanWorld, Path, int], Coroutine[Any, Any, object]],
        *also: type[Exception],
    ) -> None:
        """Tell the history of each seed in a new cluster; one that fails, or ends with `also`, shows the planted bug.

        `history`: of the cluster, a folder for tables, and the seed.
        """
        for seed in trial.seeds():
            async with self.world() as (world, folder):
                with trial.shown_by(AssertionError, *also):
                    await history(world, folder / "iceberg", seed)
