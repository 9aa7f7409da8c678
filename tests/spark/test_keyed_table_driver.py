"""Tables with a row per key in random histories, with tasks that need no JVM; planted bugs are caught."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")
pytest.importorskip("pyspark", reason="pyspark is needed: make setup")

from pyiceberg.manifest import ManifestFile

from headrace.spark.tables import tasks as append_tasks
from headrace.spark.tables import tasks as merge_tasks
from headrace.spark.tables import worker
from headrace.tables import worker as local_worker
from headrace.tables.commit.snapshots import ReplaceFiles
from tests.planted import PlantedBugs, Trial
from tests.scan.thrown_away import ThrownAway
from tests.spark.keyed_history import KeyedHistory
from tests.spark.local_tasks import LocalTasks
from tests.spark.world import ScanWorld
from tests.tables.test_table_history import bound_to_the_newest, lost_is_committed_again

pytestmark = pytest.mark.requirement("X11")


async def histories(
    world: ScanWorld, folder: Path, seeds: Iterable[int], patch: pytest.MonkeyPatch, *, is_valued: bool
) -> None:
    for seed in seeds:
        tasks = LocalTasks(rng=random.Random(seed))
        history = KeyedHistory(world, folder, tasks, random.Random(seed), is_valued=is_valued)
        patch.setattr(append_tasks, "ValueFormats", lambda *_, formats=history.tables.formats: formats)
        await history.tell()


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 40), marks=pytest.mark.slow)], ids=["few", "more"])
async def test_the_table_has_the_last_value_of_each_key(
    world: ScanWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: Sequence[int]
) -> None:
    await histories(world, tmp_path / "iceberg", seeds[::2], monkeypatch, is_valued=True)
    await histories(world, tmp_path / "iceberg", seeds[1::2], monkeypatch, is_valued=False)


def _replaced_files_stay(self: ReplaceFiles) -> list[ManifestFile]:
    """The manifests still have the files that were replaced."""
    return self._parent_manifests()


BUGS: dict[str, tuple[Any, str, Any]] = {
    "files are merged with another snapshot than they replace": (local_worker, "append", bound_to_the_newest),
    "a lost answer is sent again": (local_worker, "append", lost_is_committed_again),
    "replaced files stay": (ReplaceFiles, "_existing_manifests", _replaced_files_stay),
    "a split that was opened twice is not noticed": (worker, "why_incomplete", lambda *_: ""),
    "changes are grouped by another bucket than files": (
        merge_tasks, "group_numbers", lambda changes, schema, path, count: np.arange(len(changes)) % count,
    ),
}  # fmt: skip
PLANTED = PlantedBugs("iceberg tables by key", most=200)


@PLANTED.cases(BUGS)
async def test_each_planted_bug_is_caught(
    bug: str, trial: Trial, thrown_away: ThrownAway, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.plant(*BUGS[bug])

    async def history(world: ScanWorld, folder: Path, seed: int) -> None:
        await histories(world, folder, [seed], monkeypatch, is_valued=bool(seed % 2))

    await thrown_away.look_for(trial, history)
