"""Files of killed workers go, and no file that a commit has or may still have; planted bugs are caught."""

from __future__ import annotations

import random
import shutil
import types
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from prometheus_client import CollectorRegistry
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from headrace.metastore.api.jobs import Job, JobToken
from headrace.tables.commit.file_names import file_prefix
from headrace.tables.upkeep import orphans
from headrace.tables.upkeep.jobs import UpkeepJobs, UpkeepMetrics, UpkeepSchedule
from headrace.tables.upkeep.steps import TableUpkeep, UpkeepTerms
from tests.fixtures_s3 import BUCKET, aws_credentials, moto_url
from tests.manual_clock import ManualClock
from tests.planted import PlantedBugs, Trial
from tests.scan.thrown_away import ThrownAway
from tests.spark.world import ScanWorld
from tests.tables.upkeep.orphan_history import MIN_AGE_MS, OrphanHistory, StoreTime
from tests.tables.world import Killed, Tables

__all__ = ["aws_credentials", "moto_url"]

pytestmark = pytest.mark.requirement("X11")


async def histories(world: ScanWorld, tables: Tables, seeds: Iterable[int]) -> int:
    """Return how many files were removed."""
    removed = 0
    for seed in seeds:
        history = OrphanHistory(world, tables, random.Random(seed))
        await history.tell()
        removed += history.removed
    return removed


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 12), marks=pytest.mark.slow)], ids=["few", "more"])
async def test_only_files_that_no_commit_can_have_are_removed(world: ScanWorld, tables: Tables, seeds: range) -> None:
    assert await histories(world, tables, seeds) > len(seeds)


async def test_files_that_are_not_this_tables_stay(world: ScanWorld, tables: Tables) -> None:
    """Files with other names, of another table at the same location, and of a table with `write.data.path`."""
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    time = StoreTime(tables.folder / "warehouse")
    await world.write(key, 1)
    await tables.follow()
    (written,) = tables.files()
    table = tables.load()
    assert written.name.startswith(file_prefix(table.metadata.table_uuid))
    others = [f"{uuid.uuid4()}.parquet", f"{file_prefix(uuid.uuid4())}00000-0-x.parquet"]
    orphan = f"{file_prefix(table.metadata.table_uuid)}00000-0-{uuid.uuid4()}.parquet"
    for name in (*others, orphan):
        shutil.copy(written, written.with_name(name))
    time.advance(25)
    await world.write(key, 2)
    await tables.follow()
    time.settle()

    def removed() -> int:
        return orphans.remove_orphans(tables.load(), tables.load, MIN_AGE_MS)

    tables.catalog.set_property("orders", orphans.DATA_PATH, str(written.parent))
    assert removed() == 0
    tables.catalog.set_property("orders", orphans.DATA_PATH, "")
    assert removed() == 1
    left = {path.name for path in tables.files()}
    assert orphan not in left
    assert left >= {written.name, *others}
    assert removed() == 0
    await tables.check()


async def test_an_orphan_that_a_snapshot_gets_meanwhile_stays(world: ScanWorld, tables: Tables) -> None:
    """Each file is looked up in the newest metadata before it is deleted."""
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    time = StoreTime(tables.folder / "warehouse")
    for number in (1, 2):
        await world.write(key, number)
        await tables.follow()
        time.advance(25)
    table, (first, second) = tables.load(), sorted(tables.files(), key=lambda path: path.stat().st_mtime)
    copies = []
    for _ in range(2):
        copy = first.with_name(f"{file_prefix(table.metadata.table_uuid)}00000-0-{uuid.uuid4()}.parquet")
        shutil.copy2(first, copy)
        copies.append(copy)

    def load() -> Table:
        missing = [copy for copy in copies if copy.name not in orphans.NamedByMetadata().of_all(tables.load())]
        if missing:
            tables.load().add_files([copy.as_uri() for copy in missing])
        return tables.load()

    assert orphans.remove_orphans(table, load, MIN_AGE_MS) == 0
    assert {first, second, *copies} == tables.files()


async def test_after_a_rollback_the_age_counts_to_the_files_of_the_older_snapshot(
    world: ScanWorld, tables: Tables
) -> None:
    """A commit that continues the snapshot, and hangs, can happen again."""
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    time = StoreTime(tables.folder / "warehouse")
    for number in (1, 2):
        await world.write(key, number)
        await tables.follow()
        time.advance(1)
        if number == 1:
            before, (first,) = tables.load().metadata.current_snapshot_id, tables.files()
            shutil.copy(first, first.with_name(first.name + ".hangs.parquet"))
            time.advance(30)
    assert before is not None
    tables.load().manage_snapshots().rollback_to_snapshot(before).commit()
    assert orphans.remove_orphans(tables.load(), tables.load, MIN_AGE_MS) == 0
    assert len(tables.files()) == 3


async def test_a_job_removes_them(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    await tables.follow()
    await world.write(key, 1)
    tables.failing.next_failure = "before"
    with pytest.raises(Killed):
        await tables.round()
    time = StoreTime(tables.folder / "warehouse")
    time.advance(25)
    await world.write(key, 2)
    await tables.follow()
    time.settle()
    clock, registry = ManualClock(), CollectorRegistry()
    schedule = UpkeepSchedule(world.postgres.jobs, "test.headrace", lambda _: 0, clock)
    job = Job(JobToken(1, 1), schedule.kinds[1].name, "orders", b"", 1, "")
    async with tables.worker() as worker:
        for age_ms, left in ((0, 2), (MIN_AGE_MS, 1)):
            upkeep = TableUpkeep(tables.catalog, UpkeepTerms(orphan_min_age_ms=age_ms))
            metrics = UpkeepMetrics(registry if left == 1 else None)
            await UpkeepJobs(worker.tables, upkeep, metrics, clock).remove_orphans(job, None)
            assert len(tables.files()) == left
    assert registry.get_sample_value("headrace_table_orphans_removed_total", {"table": "orders"}) == 1
    await tables.check()


async def test_dead_letters_have_orphans_too(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=("json",))
    await tables.follow()
    time = StoreTime(tables.folder / "warehouse")
    for number in range(2):
        await world.write(key, number)
        await tables.follow()
        time.advance(25)
    letters = tables.catalog.load("orders_dead_letters")
    left = next(path for path in tables.files() if file_prefix(letters.metadata.table_uuid) in path.name)
    copy = left.with_name(f"{file_prefix(letters.metadata.table_uuid)}00000-0-x.parquet")
    shutil.copy(left, copy)
    time.advance(25)
    await world.write(key, 9)
    await tables.follow()
    time.settle()
    TableUpkeep(tables.catalog, UpkeepTerms(orphan_min_age_ms=MIN_AGE_MS)).remove_orphans("orders")
    assert not copy.exists()
    assert len(tables.dead()) == 9


def test_files_in_s3_have_the_times_of_the_store(moto_url: str) -> None:
    properties = {
        "s3.endpoint": moto_url,
        "s3.region": "us-east-1",
        "s3.access-key-id": "a",
        "s3.secret-access-key": "b",
    }
    io, location = PyArrowFileIO(properties), f"s3://{BUCKET}/lake/orders"
    table: Any = types.SimpleNamespace(io=io, metadata=types.SimpleNamespace(location=location))
    assert orphans.stored_files(table) == {}
    for place in ("data/day=1/a.parquet", "metadata/b.avro"):
        with io.new_output(f"{location}/{place}").create() as stream:
            stream.write(b"x")
    (file,) = orphans.stored_files(table).values()
    assert (file.location, file.name) == (f"{location}/data/day=1/a.parquet", "a.parquet")
    assert file.changed_ms > 1_700_000_000_000
    io.delete(file.location)
    assert orphans.stored_files(table) == {}


def _newest_of_all(files: Mapping[str, Any], current: Iterable[str]) -> int:
    """A file of a commit under way is removed: its age is judged by the newest file, which no commit may have."""
    return max((each.changed_ms for each in files.values()), default=0)


def _by_the_clock(files: Mapping[str, Any], current: Iterable[str]) -> int:
    """A file of a commit under way is removed: the store's time alone says that it is old."""
    return 1 << 60


def _of_current(self: Any, table: Table) -> set[str]:
    """Take what only older snapshots have for an orphan."""
    return self.of_current(table)  # type: ignore[no-any-return]


BUGS: dict[str, tuple[Any, str, Any]] = {
    "a file of a commit under way is removed": (orphans, "newest_committed_ms", _by_the_clock),
    "age is judged by a file that no commit has": (orphans, "newest_committed_ms", _newest_of_all),
    "files of older snapshots are removed": (orphans.NamedByMetadata, "of_all", _of_current),
}
PLANTED = PlantedBugs("orphan files of iceberg tables", most=100)


@PLANTED.cases(BUGS)
async def test_each_planted_bug_is_caught(bug: str, trial: Trial, thrown_away: ThrownAway) -> None:
    trial.plant(*BUGS[bug])

    async def history(world: ScanWorld, folder: Path, seed: int) -> None:
        await histories(world, Tables(world, folder), [seed])

    await thrown_away.look_for(trial, history, FileNotFoundError)
