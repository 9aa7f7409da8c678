"""Old snapshots expire with the files that only they have; what is needed to continue or to read stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.storage.errors import UnavailableError
from headrace.tables.looking import Condition
from headrace.tables.upkeep.expiry import expire
from headrace.tables.upkeep.steps import TableUpkeep, UpkeepTerms
from tests.spark.world import ScanWorld
from tests.tables.history import rewrite
from tests.tables.world import Killed, Tables

pytestmark = pytest.mark.requirement("X11")
LATER = 1 << 50


def files(tables: Tables) -> set[Path]:
    """The manifest lists, manifests and data files in the warehouse."""
    return {
        path for path in (tables.folder / "warehouse").rglob("*")
        if path.is_file() and path.suffix in (".avro", ".parquet")
    }  # fmt: skip


async def written(world: ScanWorld, tables: Tables) -> int:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    for number in range(4):
        await world.write(key, number)
        await tables.follow()
    return key


async def test_old_snapshots_go_and_the_table_is_continued(world: ScanWorld, tables: Tables) -> None:
    key = await written(world, tables)
    rewrite(tables.load())
    snapshots = tables.load().metadata.snapshots
    assert expire(tables.load(), snapshots[0].timestamp_ms) == 0, "none is older"
    assert expire(tables.load(), snapshots[2].timestamp_ms) <= 2
    assert expire(tables.load(), LATER) > 0
    left = tables.load().metadata.snapshots
    assert [each.snapshot_id for each in left] == [snapshots[-2].snapshot_id, snapshots[-1].snapshot_id]
    await world.write(key, 9)
    assert (await tables.follow()).condition is Condition.FOLLOWING
    await tables.check()
    expire(tables.load(), LATER)
    assert len(tables.load().metadata.snapshots) == 1
    await tables.check()
    scan = {Path(task.file.file_path.removeprefix("file://")) for task in tables.load().scan().plan_files()}
    assert {path for path in files(tables) if path.suffix == ".parquet"} == scan, "files that were replaced are gone"


async def test_rewrites_of_others_in_a_row_are_continued(world: ScanWorld, tables: Tables) -> None:
    """Between the snapshot of the offsets and the current one is another one, which is not named."""
    key = await written(world, tables)
    for _ in range(2):
        rewrite(tables.load())
    expire(tables.load(), LATER)
    assert len(tables.load().metadata.snapshots) == 3
    await world.write(key, 9)
    assert (await tables.follow()).condition is Condition.FOLLOWING
    await tables.check()
    expire(tables.load(), LATER)
    assert len(tables.load().metadata.snapshots) == 1


async def test_what_a_tag_or_a_branch_has_stays(world: ScanWorld, tables: Tables) -> None:
    await written(world, tables)
    snapshots = [each.snapshot_id for each in tables.load().metadata.snapshots]
    tables.load().manage_snapshots().create_tag(snapshots[2], "audit").commit()
    expire(tables.load(), LATER)
    table = tables.load()
    assert [each.snapshot_id for each in table.metadata.snapshots] == [*snapshots[:3], snapshots[-1]]
    assert len(table.scan(snapshot_id=snapshots[2]).to_arrow()) == 6
    await tables.check()


@pytest.mark.parametrize("failure", ["before", "after", "lost", "away"])
async def test_an_expiry_that_fails_half_way_costs_no_row(world: ScanWorld, tables: Tables, failure: str) -> None:
    key = await written(world, tables)
    tables.failing.next_failure = failure
    with pytest.raises((Killed, UnavailableError)):
        expire(tables.load(), LATER)
    await world.write(key, 9)
    await tables.follow()
    await tables.check()
    expire(tables.load(), LATER)
    await tables.check()


async def test_a_table_that_goes_back_meanwhile_keeps_its_snapshot(world: ScanWorld, tables: Tables) -> None:
    await written(world, tables)
    table = tables.load()
    target = table.metadata.snapshots[2].snapshot_id

    def roll_back() -> None:
        tables.load().manage_snapshots().rollback_to_snapshot(target).commit()

    tables.failing.before_commit = roll_back
    before = files(tables)
    assert expire(table, LATER) == 0
    assert files(tables) >= before
    assert tables.load().metadata.current_snapshot_id == target
    assert len(tables.rows()) == 6


async def test_dead_letters_expire_along(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=("json",))
    for number in range(3):
        await world.write(key, number)
        await tables.follow()
    found: Any = tables.dead()
    upkeep = TableUpkeep(tables.catalog, UpkeepTerms(files_min=0, snapshot_max_age_ms=1))
    assert upkeep.keep("orders", LATER).expired > 2
    assert len(tables.catalog.load("orders_dead_letters").metadata.snapshots) == 1
    await world.write(key, 9)
    await tables.follow()
    assert len(tables.dead()) == len(found) + 3 == 12
