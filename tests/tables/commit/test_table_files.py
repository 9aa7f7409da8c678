"""What a table's files and metadata cost: bounds of the record's columns, offsets that are written once, few files."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.tables import worker
from headrace.tables.commit import data_files, limits
from headrace.tables.commit import snapshots as snapshot_offsets
from headrace.tables.commit.limits import FILES_MAX
from headrace.tables.commit.snapshots import KnownManifests
from headrace.tables.listing import TableAddress, duckdb_lines
from headrace.tables.open_tables import Choice, decide
from headrace.tables.state import OFFSETS, OFFSETS_IN
from headrace.tables.upkeep import deleting
from headrace.tables.upkeep.deleting import retain
from headrace.tables.upkeep.replacing import Replacer
from headrace.tables.values.open import OpenedChunk
from tests.planted import PlantedBugs, Trial
from tests.scan.thrown_away import ThrownAway
from tests.spark.world import TIME_MS, ScanWorld
from tests.tables.duckdb_reader import rows_by_duckdb
from tests.tables.history import AppendHistory
from tests.tables.test_valued_tables import JSON, batch
from tests.tables.world import Tables

pytestmark = pytest.mark.requirement("X11")


class ReadFiles:
    """Counts the files of which rows are read."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        patch.setattr(deleting, "read_files", self._read)

    def _read(self, metadata: Any, storage: Any, files: Any) -> Any:
        self.count += len(files)
        return data_files.read_files(metadata, storage, files)


@pytest.mark.parametrize("has_bounds", [True, False], ids=["new files", "files of older versions"])
async def test_retention_reads_only_what_can_be_old(
    world: ScanWorld, tables: Tables, monkeypatch: pytest.MonkeyPatch, has_bounds: bool
) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=JSON)
    if not has_bounds:
        monkeypatch.setattr(data_files, "bounds_of", lambda schema, properties: {})
    for number in range(3):
        await world.commit((key, batch({"id": number}, time_ms=TIME_MS + number * 1_000)))
        await tables.follow()
    monkeypatch.undo()
    read = ReadFiles(monkeypatch)

    def retained(now_ms: int) -> int:
        return retain(Replacer(tables.load, KnownManifests()), 5_000, TIME_MS + now_ms, lambda: False).rows

    old = "kafka.timestamp < '1990-01-01T00:00:00+00:00'"
    assert len(list(tables.load().scan(row_filter=old).plan_files())) == (0 if has_bounds else 3)
    assert (await asyncio.to_thread(retained, 5_000), read.count) == (0, 0)
    assert (await asyncio.to_thread(retained, 6_500), read.count) == (2, 0), "whole files go without being read"
    assert [row["id"] for row in tables.found()] == [2]


async def test_offsets_of_many_partitions_are_not_in_each_summary(
    world: ScanWorld, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_offsets, "SUMMARY_BYTES_MAX", 100)
    keys = await world.topic("orders", 20)
    await tables.create("orders")
    for number in range(3):
        await world.write(keys[number], number)
        await tables.follow()
    table = tables.load()
    snapshots = [each.snapshot_id for each in table.metadata.snapshots]
    for each in table.metadata.snapshots:
        assert each.summary is not None
        assert OFFSETS not in each.summary.additional_properties
        assert len(each.summary.model_dump_json()) < 1_000
    assert snapshot_offsets.offsets_at(table, snapshots[-1])[2].offset == 3
    rows = rows_by_duckdb(duckdb_lines(TableAddress("test", {}, "headrace.orders", table.metadata_location)))
    assert rows.num_rows == 9
    table.manage_snapshots().rollback_to_snapshot(snapshots[-2]).commit()
    assert "rolled back" in (await tables.round()).reason
    decide(tables.load(), Choice.ROWS)
    await tables.follow()
    await tables.check()


async def test_offsets_of_few_partitions_are_in_the_summary(world: ScanWorld, tables: Tables) -> None:
    """Processes of older versions read them there."""
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    await world.write(key, 1)
    await tables.follow()
    snapshot = tables.load().metadata.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.additional_properties[OFFSETS] == '{"0":[3,0]}'
    assert OFFSETS_IN not in snapshot.summary.additional_properties


async def test_a_commit_has_no_more_files_than_it_may(
    world: ScanWorld, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FILES_MAX == 1_000
    monkeypatch.setattr(limits, "FILES_MAX", 3)
    a, b = await world.topic("orders", 2)
    await tables.create("orders", values=JSON, layout=["identity(who)", "partition"])
    await world.commit((a, batch({"who": "first"})))
    await tables.follow()
    await world.commit((a, batch(*({"who": f"{n % 7}"} for n in range(20)))), (b, batch(b"{", {"who": "x"}, b"[")))
    await tables.follow()
    counts = [
        int(each.summary.additional_properties.get("added-data-files", 0))
        for each in tables.load().metadata.snapshots
        if each.summary is not None
    ]
    assert max(counts) == 3
    assert [row["who"] for row in tables.found()] == ["first", *(f"{n % 7}" for n in range(20)), "x"]
    assert [(partition, offset) for partition, offset, *_ in tables.dead()] == [(1, 0), (1, 2)]


async def _histories(world: ScanWorld, folder: Path, seed: int, patch: pytest.MonkeyPatch) -> None:
    """Each commit writes one file, and each snapshot has its offsets in its manifest list."""
    patch.setattr(limits, "FILES_MAX", 1)
    patch.setattr(snapshot_offsets, "SUMMARY_BYTES_MAX", 0)
    history = AppendHistory(world, Tables(world, folder), random.Random(seed), is_valued=bool(seed % 2))
    await history.tell()


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 10), marks=pytest.mark.slow)], ids=["few", "more"])
async def test_limits_lose_and_double_no_record(
    world: ScanWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    for seed in seeds:
        await _histories(world, tmp_path / f"{seed}", seed, monkeypatch)


def _rows_only(self: Any, name: str, look: Any, opened: OpenedChunk) -> OpenedChunk:
    """The offsets rise as if each row behind the cut were there."""
    made = _limited(self, name, look, opened)
    return OpenedChunk(made.columns, made.rows, opened.dead, opened.cuts)


_limited = worker.TableWorker._limited
BUGS = {"rows behind a cut are taken as there": _rows_only}
PLANTED = PlantedBugs("limits of iceberg tables", most=100)


@PLANTED.cases(BUGS)
async def test_each_planted_bug_is_caught(
    bug: str, trial: Trial, thrown_away: ThrownAway, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.plant(worker.TableWorker, "_limited", BUGS[bug])

    async def history(world: ScanWorld, folder: Path, seed: int) -> None:
        await _histories(world, folder, seed * 2 + 1, monkeypatch)

    await thrown_away.look_for(trial, history)
