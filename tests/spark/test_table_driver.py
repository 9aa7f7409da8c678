"""The driver of `headrace-spark-tables` in random histories, with tasks that need no JVM; planted bugs are caught."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")
pytest.importorskip("pyspark", reason="pyspark is needed: make setup")

from headrace.scan.plan import Split
from headrace.spark.tables import tasks
from headrace.spark.tables import worker as driver_worker
from headrace.spark.tables.tasks import AppendTask
from headrace.spark.tables.worker import SparkTableWorker
from headrace.tables import worker as local_worker
from headrace.tables.commit import limits
from headrace.tables.commit.data_files import DataFilePlace
from headrace.tables.looking import TableLook
from headrace.tables.worker import Made
from tests.planted import PlantedBugs, Trial
from tests.scan.thrown_away import ThrownAway
from tests.spark.local_tasks import LocalTasks
from tests.spark.table_driver import InTurn
from tests.spark.test_tables import compare_with_the_local_worker
from tests.spark.world import ScanWorld
from tests.tables.history import AppendHistory
from tests.tables.test_table_history import bound_to_the_newest
from tests.tables.world import Tables

pytestmark = pytest.mark.requirement("X11")


async def histories(
    world: ScanWorld, folder: Path, seeds: Iterable[int], patch: pytest.MonkeyPatch, *, is_valued: bool
) -> None:
    """Rounds of driver and local worker by chance; tasks take the histories' fickle format."""
    for seed in seeds:
        tables = InTurn(world, folder, LocalTasks(), random.Random(seed))
        history = AppendHistory(world, tables, random.Random(seed), is_valued=is_valued)
        patch.setattr(tasks, "ValueFormats", lambda *_, formats=tables.formats: formats)
        await history.tell()


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 12), marks=pytest.mark.slow)], ids=["few", "more"])
async def test_driver_and_local_worker_append_each_record_once(
    world: ScanWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: Sequence[int]
) -> None:
    await histories(world, tmp_path / "iceberg", seeds[::2], monkeypatch, is_valued=True)
    await histories(world, tmp_path / "iceberg", seeds[1::2], monkeypatch, is_valued=False)


async def test_a_chunk_with_too_many_files_is_left_to_the_driver(
    world: ScanWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FILES_MAX", 1)
    await histories(world, tmp_path / "iceberg", [3], monkeypatch, is_valued=False)


async def test_columns_and_dead_letters_are_those_of_the_local_worker(world: ScanWorld, tmp_path: Path) -> None:
    await compare_with_the_local_worker(world, Tables(world, tmp_path / "iceberg"), LocalTasks())


async def _added_although_undecided(
    self: SparkTableWorker, name: str, look: TableLook, splits: Sequence[Split]
) -> Made:
    """What tasks wrote is committed, although one of them left its records to the driver."""
    assert self.spark is not None
    task = AppendTask(DataFilePlace.of(look.table), look.definition, "", self.spark.bucket)
    done = driver_worker._run(self.spark.open(), task, splits)
    dead = tuple(gap for each in done for gap in each.dead)
    return Made(sum(each.rows for each in done), dead, files=tuple(file for each in done for file in each.files))


BUGS: dict[str, tuple[Any, str, Any]] = {
    "files are added although a task left its records to the driver": (
        SparkTableWorker, "_written", _added_although_undecided,
    ),
    "files are committed to another snapshot than they were planned on": (local_worker, "append", bound_to_the_newest),
}  # fmt: skip
PLANTED = PlantedBugs("iceberg tables by spark", most=100)


@PLANTED.cases(BUGS)
async def test_each_planted_bug_is_caught(
    bug: str, trial: Trial, thrown_away: ThrownAway, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.plant(*BUGS[bug])

    async def history(world: ScanWorld, folder: Path, seed: int) -> None:
        await histories(world, folder, [seed], monkeypatch, is_valued=True)

    await thrown_away.look_for(trial, history)
