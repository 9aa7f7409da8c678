"""Faults of worker and catalog, changes by others: the table has each record once, and planted bugs are caught."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from pyiceberg.table import Table

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.scan.tables import appending, worker
from headrace.scan.tables.state import Follows, NotBegun, TableProgress, TableView, offsets_of
from headrace.storage.cluster_properties import write_cluster_id
from tests.metastore.sql_sources import Throwaway
from tests.planted import PlantedBugs, Report, Trial
from tests.scan.tables.history import TableHistory
from tests.scan.tables.world import Tables
from tests.spark.world import ScanWorld


async def histories(world: ScanWorld, tables: Tables, seeds: Iterable[int]) -> None:
    for seed in seeds:
        await TableHistory(world, tables, random.Random(seed)).tell()


async def test_the_table_has_each_committed_record_once(world: ScanWorld, tables: Tables) -> None:
    await histories(world, tables, range(6))


def _offsets_of_the_newest_snapshot(view: TableView) -> Any:
    """Offsets only in the summary: another engine's snapshot has none."""
    current = view.snapshots.get(view.current_id) if view.current_id is not None else None
    if current is None or current.offsets is None:
        return NotBegun()
    return Follows(TableProgress(offsets_of(current.offsets), current.snapshot_id))


def _bound_to_the_newest(table: Table, before: Any, add: Any) -> Any:
    """The commit asserts the newest snapshot, not the one that it continues."""
    catalog: Any = table.catalog
    first, catalog.before_commit = catalog.before_commit, None
    if first is not None:
        first()
    table.refresh()
    return _append(table, before, add)


def _lost_is_committed_again(*args: Any) -> Any:
    """Send what had no answer once more."""
    made = _append(*args)
    if made.outcome is appending.CommitOutcome.UNKNOWN:
        table, before, add = args
        table.refresh()
        return _append(table, before, add)
    return made


_append = appending.append
BUGS: dict[str, tuple[Any, str, Any]] = {
    "the library's retry is on": (appending, "NO_RETRIES", "4"),
    "offsets are only in the summary": (worker, "standing_of", _offsets_of_the_newest_snapshot),
    "two workers do not exclude each other": (worker, "append", _bound_to_the_newest),
    "a lost answer is sent again": (worker, "append", _lost_is_committed_again),
}
PLANTED = PlantedBugs("iceberg tables", most=100)


@PLANTED.cases(BUGS)
async def test_each_planted_bug_is_caught(
    bug: str,
    trial: Trial,
    record_property: Report,
    postgres_server: EmbeddedPostgres,
    metastore_template: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, name, replacement = BUGS[bug]
    monkeypatch.setattr(module, name, replacement)
    for seed in trial.seeds(record_property):
        async with Throwaway(postgres_server, metastore_template).store() as (url, store):
            folder = tmp_path_factory.mktemp("world")
            world = ScanWorld(store, url, folder / "bucket")
            await world.begin()
            await write_cluster_id(world.store, store.cluster_id)
            try:
                await histories(world, Tables(world, folder / "iceberg"), [seed])
            except AssertionError as found:
                trial.saw(f"{type(found).__name__}: {found}")
            finally:
                await world.service.close()
