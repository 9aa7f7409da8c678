"""Upkeep next to writers: no row is lost or doubled by any failure; planted bugs are caught."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from headrace.jobs.runner import RunnerTerms
from headrace.storage.supervision import Supervisor

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

import pyarrow.parquet as pq
from prometheus_client import CollectorRegistry
from pyiceberg.table import Table

from headrace.jobs.runner import JobMetrics, JobRunner
from headrace.metastore.log.snapshot import load_image
from headrace.storage.errors import UnavailableError
from headrace.tables.commit import snapshots
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.commit.snapshots import ReplaceFiles
from headrace.tables.errors import TableError
from headrace.tables.listing import TableAddress, duckdb_lines
from headrace.tables.state import PROGRESS, REWRITE, TableProgress
from headrace.tables.upkeep import rewriting
from headrace.tables.upkeep.jobs import ASK_SECONDS, UpkeepJobs, UpkeepMetrics, UpkeepSchedule
from headrace.tables.upkeep.replacing import Replacement, Replacer
from headrace.tables.upkeep.steps import TableUpkeep, UpkeepReport, UpkeepTerms
from tests.manual_clock import ManualClock
from tests.planted import PlantedBugs, Trial
from tests.scan.thrown_away import ThrownAway
from tests.spark.world import ScanWorld
from tests.tables.duckdb_reader import rows_by_duckdb
from tests.tables.upkeep.upkeep_history import NOW_MS, HangingRewrites, UpkeepHistory
from tests.tables.world import Tables, from_a_thread

pytestmark = pytest.mark.requirement("X11")
TERMS = UpkeepTerms(files_min=2, snapshot_max_age_ms=1)
PLACE = "test.headrace"


async def histories(world: ScanWorld, tables: Tables, seeds: Iterable[int]) -> None:
    for seed in seeds:
        await UpkeepHistory(world, tables, random.Random(seed), is_valued=seed % 3 == 2).tell(parts=2)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 14), marks=pytest.mark.slow)], ids=["few", "more"])
async def test_upkeep_next_to_writers_loses_and_doubles_no_row(world: ScanWorld, tables: Tables, seeds: range) -> None:
    await histories(world, tables, seeds)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 8), marks=pytest.mark.slow)], ids=["few", "more"])
async def test_a_rewrite_that_hangs_for_days_commits_no_file_that_was_removed(
    world: ScanWorld, tables: Tables, seeds: range
) -> None:
    for seed in seeds:
        await HangingRewrites(world, tables, random.Random(seed)).tell(rounds=3)


async def written(world: ScanWorld, tables: Tables, count: int = 3, layout: Iterable[str] = ()) -> list[int]:
    """A topic with two partitions, and its table with a file for each of so many commits."""
    keys = await world.topic("orders", 2)
    await tables.create("orders", layout=list(layout))
    for number in range(count):
        for key in keys:
            await world.write(key, number)
        await tables.follow()
    return keys


async def written_more(world: ScanWorld, tables: Tables) -> None:
    image = await load_image(world.postgres.cluster)
    key = image.topics_by_name["orders"].key(0)
    assert key is not None
    await world.write(key, 8)
    await tables.follow()


def keep(tables: Tables, terms: UpkeepTerms = TERMS, now_ms: int = NOW_MS) -> UpkeepReport:
    return TableUpkeep(tables.catalog, terms).keep("orders", now_ms)


def data_files(table: Table) -> list[Any]:
    return [task.file for task in table.scan().plan_files()]


async def test_a_group_that_is_too_large_for_memory_is_divided(
    world: ScanWorld, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(world, tables, 5)
    sizes = [
        rewriting.read_files(tables.load().metadata, tables.load().io, [file]).nbytes
        for file in data_files(tables.load())
    ]
    monkeypatch.setattr(rewriting, "OPENED_BYTES_MAX", max(sizes) * 7 // 2)
    assert keep(tables).rewritten[:2] == (5, 2), "2 and 3 files"
    await tables.check()
    monkeypatch.setattr(rewriting, "OPENED_BYTES_MAX", 1)
    before = tables.files()
    assert keep(tables).rewritten[:2] == (0, 0), "no two of them fit"
    assert tables.files() == before
    monkeypatch.setattr(rewriting, "OPENED_BYTES_MAX", 1 << 30)
    assert keep(tables).rewritten[:2] == (2, 1)
    await tables.check()


async def test_small_files_become_one_in_offset_order(world: ScanWorld, tables: Tables) -> None:
    keys = await written(world, tables)
    before = TableProgress.of(tables.load().properties[PROGRESS])
    assert len(data_files(tables.load())) == 3
    report = keep(tables)
    table = tables.load()
    (file,) = data_files(table)
    assert report.rewritten[:2] == (3, 1)
    assert (report.files, len(table.metadata.snapshots)) == (1, 1)
    current = table.metadata.current_snapshot()
    assert current is not None
    assert current.summary is not None
    assert current.summary.operation.value == REWRITE
    after = TableProgress.of(table.properties[PROGRESS])
    assert (after.positions, after.records, after.snapshot_id) == (before.positions, 18, current.snapshot_id)
    with table.io.new_input(file.file_path).open() as stream:
        rows = pq.read_table(stream, columns=["partition", "offset"]).to_pylist()
    assert [(row["partition"], row["offset"]) for row in rows] == [(p, n) for p in (0, 1) for n in range(9)]
    assert {path.name for path in tables.files()} == {file.file_path.rpartition("/")[2]}
    assert keep(tables).rewritten == (0, 0, 0), "nothing is left to do"
    await world.write(keys[0], 9)
    await tables.follow()
    await tables.check()


@pytest.mark.slow
async def test_each_file_stays_in_its_partition(world: ScanWorld, tables: Tables) -> None:
    layout = ("day", "partition")
    await written(world, tables, layout=layout)
    before = {tuple(file.partition[n] for n in range(len(layout))) for file in data_files(tables.load())}
    keep(tables)
    after = [tuple(file.partition[n] for n in range(len(layout))) for file in data_files(tables.load())]
    assert sorted(after) == sorted(before)
    await tables.check()
    address = TableAddress("test", {}, "headrace.orders", tables.load().metadata_location)
    found = await asyncio.to_thread(rows_by_duckdb, duckdb_lines(address))
    rows = sorted(zip(found.column("partition").to_pylist(), found.column("offset").to_pylist(), strict=True))
    assert rows == [(row.partition, row.offset) for row in await world.consumed("orders")]


async def test_an_append_that_is_first_does_not_starve_the_rewrite(world: ScanWorld, tables: Tables) -> None:
    keys = await written(world, tables)

    async def append() -> None:
        await world.write(keys[0], 7)
        await tables.again().follow()

    tables.failing.before_commit = from_a_thread(append)
    report = await asyncio.to_thread(keep, tables)
    assert report.rewritten[:2] == (3, 1)
    assert len(data_files(tables.load())) == 2
    await tables.check()


async def test_what_cannot_be_kept_is_left_alone(world: ScanWorld, tables: Tables) -> None:
    """Files of an earlier partitioning, and a table that was rolled back."""
    await written(world, tables)
    with tables.load().update_spec() as change:
        change.add_identity("partition")
    assert keep(tables, UpkeepTerms(files_min=2)).rewritten == (0, 0, 0)
    before = tables.load().history()[1].snapshot_id
    tables.load().manage_snapshots().rollback_to_snapshot(before).commit()
    assert keep(tables) == UpkeepReport()
    assert len(tables.load().metadata.snapshots) == 4, "what was rolled back may be what a user wants back"


async def test_manifests_are_merged_without_a_file(
    world: ScanWorld, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (snapshots, rewriting):
        monkeypatch.setattr(module, "MANIFESTS_MIN", 4)
    await written(world, tables)
    assert keep(tables, UpkeepTerms(files_min=1_000), now_ms=0).rewritten == (0, 0, 0)
    await written_more(world, tables)
    assert keep(tables, UpkeepTerms(files_min=1_000), now_ms=0).rewritten == (0, 0, 4)
    current = tables.load().metadata.current_snapshot()
    assert current is not None
    assert len(current.manifests(tables.load().io)) == 1
    await tables.check()


async def test_losing_the_lease_in_the_middle_is_harmless(world: ScanWorld, tables: Tables) -> None:
    await written(world, tables)
    clock = ManualClock(1 << 50)
    schedule = UpkeepSchedule(world.postgres.jobs, PLACE, lambda _: 0, clock)
    kinds = [kind.name for kind in schedule.kinds]
    await schedule.ask(["orders"])

    async def jobs_of(others: Tables) -> tuple[UpkeepJobs, JobRunner]:
        async with others.worker() as worker:
            work = UpkeepJobs(worker.tables, TableUpkeep(others.catalog, TERMS), UpkeepMetrics(None), clock)
        metrics = JobMetrics(clock, CollectorRegistry())
        return work, JobRunner(
            world.postgres.jobs,
            work.handlers(schedule),
            RunnerTerms("second"),
            clock,
            random.Random(1),
            metrics,
            Supervisor(clock),
        )

    first, _ = await jobs_of(tables)
    _, second = await jobs_of(tables.again())
    job = await world.postgres.jobs.claim_job("first", kinds, lease_ms=1)
    assert job is not None
    assert job.key == "orders"
    tables.failing.before_commit = from_a_thread(second.drain)
    await first.keep(job, None)
    assert len(data_files(tables.load())) == 1
    files = {file.file_path.rpartition("/")[2] for file in data_files(tables.load())}
    assert {path.name for path in tables.files()} == files, "the loser removed what it wrote"
    await tables.check()
    assert await world.postgres.jobs.claim_job("third", kinds, lease_ms=1) is None
    tables.catalog.drop("orders", purge=False)
    await first.keep(job, None)


async def test_each_table_gets_one_job_of_each_kind(world: ScanWorld, tables: Tables) -> None:
    clock = ManualClock()
    schedules = [UpkeepSchedule(world.postgres.jobs, PLACE, lambda _: 1_000, clock) for _ in range(2)]
    for _ in range(2):
        for schedule in schedules:
            await schedule.ask(["orders", "events"])
        clock.jump(ASK_SECONDS)
    kinds = [kind.name for kind in schedules[0].kinds]
    found = [job for job in await world.postgres.reports.list_jobs(100) if job.kind in kinds]
    assert sorted((job.kind, job.key) for job in found) == [
        (kind, name) for kind in sorted(kinds) for name in ("events", "orders")
    ]


@pytest.mark.parametrize(("interval_ms", "between_s"), [(1_000, 1.0), (3_600_000, ASK_SECONDS)])
async def test_a_table_without_a_job_is_noticed_after_its_interval_or_a_minute(
    interval_ms: int, between_s: float
) -> None:
    clock, jobs = ManualClock(), AsyncMock()
    schedule = UpkeepSchedule(jobs, PLACE, lambda _: interval_ms, clock)
    asked = []
    for seconds in (0.0, between_s * 0.9, between_s * 0.2):
        clock.jump(seconds)
        await schedule.ask(["orders"])
        asked.append(jobs.enqueue_jobs.await_count)
    assert asked == [1, 1, 2]


def _not_looked_up(self: Replacer, *_: Any) -> str:
    """Files are replaced although they may be gone: only the snapshot is asserted."""
    return ""


def _all_required(self: Any, entries: Any) -> None:
    """Take what is left of the replaced files for all of them."""


def _removed_although_unanswered(self: Replacer, table: Table, what: Replacement) -> CommitOutcome:
    """A commit without an answer is taken as failed."""
    outcome = _commit(self, table, what)
    return CommitOutcome.CONFLICT if outcome is CommitOutcome.UNKNOWN else outcome


def _no_property(self: Replacer, table: Table, what: Replacement) -> Any:
    """The offsets' property still names the snapshot before."""
    change = _staged(self, table, what)
    change._updates = tuple(each for each in change._updates if type(each).__name__ != "SetPropertiesUpdate")
    return change


_commit, _staged = Replacer._commit, Replacer._staged
BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "two rewrites of one file do not exclude each other": [
        (Replacer, "_why_not", _not_looked_up), (ReplaceFiles, "_validate_required_deletes", _all_required)
    ],
    "files of a commit without an answer are removed": [(Replacer, "_commit", _removed_although_unanswered)],
    "the property of the offsets is not set": [(Replacer, "_staged", _no_property)],
}  # fmt: skip
PLANTED = PlantedBugs("upkeep of iceberg tables", most=100)


@PLANTED.cases(BUGS)
async def test_each_planted_bug_is_caught(bug: str, trial: Trial, thrown_away: ThrownAway) -> None:
    for replaced in BUGS[bug]:
        trial.plant(*replaced)

    async def history(world: ScanWorld, folder: Path, seed: int) -> None:
        await histories(world, Tables(world, folder), [seed])

    await thrown_away.look_for(trial, history, FileNotFoundError, TableError, UnavailableError)


HANGING: Mapping[str, tuple[Any, str, Any]] = {
    "a rewrite waits for longer than orphans are kept": (Replacer, "_wait_max_ms", 1 << 60),
}
PLANTED_HANGING = PlantedBugs("rewrites of iceberg tables that hang", most=100)


@PLANTED_HANGING.cases(HANGING)
async def test_each_planted_bug_of_rewrites_that_hang_is_caught(
    bug: str, trial: Trial, thrown_away: ThrownAway
) -> None:
    trial.plant(*HANGING[bug])

    async def history(world: ScanWorld, folder: Path, seed: int) -> None:
        await HangingRewrites(world, Tables(world, folder), random.Random(seed)).tell(rounds=3)

    await thrown_away.look_for(trial, history, FileNotFoundError)
