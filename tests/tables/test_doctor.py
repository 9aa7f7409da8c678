"""`headrace doctor` and tables: what it says of real ones, of a catalog that is away, and without pyiceberg."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.cli.doctor import tables as doctor
from headrace.cli.doctor.findings import Finding
from headrace.config.settings import Settings
from headrace.metastore.api.cluster import SettingReport
from headrace.tables.listing import waited_ms
from headrace.tables.state import PAUSED
from tests.spark.world import ScanWorld
from tests.tables.world import Tables


@pytest.fixture
def settings(world: ScanWorld, tables: Tables, metastore_url: str, tmp_path: Path) -> Settings:
    return Settings(
        metastore_url=metastore_url,
        bucket=(tmp_path / "bucket").as_uri(),
        tables_catalog_name="test",
        tables_catalog_uri=f"sqlite:///{tables.folder}/catalog.db",
    )


def told(findings: list[Finding]) -> dict[str, tuple[str, str]]:
    return {each.check: (each.level.value, each.found) for each in findings}


async def test_tables_that_do_not_follow_are_named(world: ScanWorld, tables: Tables, settings: Settings) -> None:
    assert told(await doctor.examine(settings)) == {"following": ("ok", "all 0 tables follow their topics")}
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    await world.write(key, 1)
    await tables.follow()
    found = told(await doctor.examine(settings))
    assert found["role"] == ("bad", "no process has the role tables: 1 tables get no records")
    assert found["following"] == ("ok", "all 1 tables follow their topics")
    await world.postgres.cluster.report_settings(
        SettingReport(uuid.uuid4(), "host-1", ("compactor", "tables"), None, {})
    )
    await tables.create("orders", name="second")
    tables.catalog.set_property("orders", PAUSED, "partition 0, offset 1: not JSON")
    found = told(await doctor.examine(settings))
    assert found["paused"] == ("warn", "orders: partition 0, offset 1: not JSON")
    assert found["role"] == ("ok", "1 processes have the role tables")
    assert "following" not in found
    await tables.follow("second")
    before = tables.load("second").metadata.snapshots[0].snapshot_id
    tables.load("second").manage_snapshots().rollback_to_snapshot(before).commit()
    level, message = told(await doctor.examine(settings))["stopped"]
    assert level == "bad"
    assert message.startswith("second: the table was rolled back")


async def test_records_wait_since_the_newest_commit_or_their_own_time(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders")
    hour = 3_600_000
    async with tables.worker() as worker:
        created = tables.load().metadata.last_updated_ms
        assert await waited_ms(world.postgres.index, await worker.tables.look("orders"), created + hour) == hour
        await tables.follow()
        snapshot = tables.load().metadata.current_snapshot()
        assert snapshot is not None
        at = snapshot.timestamp_ms
        assert await waited_ms(world.postgres.index, await worker.tables.look("orders"), at + hour) == 0, (
            "nothing is missing"
        )
        await world.write(key, 1)
        assert await waited_ms(world.postgres.index, await worker.tables.look("orders"), at + hour) == hour
        tables.catalog.set_property("orders", PAUSED, "maintenance")
        assert await waited_ms(world.postgres.index, await worker.tables.look("orders"), at + hour) is None


async def test_a_catalog_that_is_away_and_a_package_that_is_missing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Settings(
        metastore_url=settings.metastore_url,
        bucket=settings.bucket,
        tables_catalog_name="test",
        tables_catalog_uri="http://127.0.0.1:1",
    )
    level, message = told(await doctor.examine(away))["catalog"]
    assert level == "bad"
    assert message.startswith("test: catalog test: the catalog does not answer")
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    level, message = told(await doctor.examine(settings))["catalog"]
    assert level == "warn"
    assert "pyiceberg is not installed; the extra `tables` has it: pip install" in message
    assert await doctor.examine(Settings()) == []


def test_tables_with_a_row_per_key_need_no_role_but_their_command() -> None:
    row = {"table": "orders", "condition": "following", "reason": None, "mode": "upsert", "waited_ms": 700_000}
    found = list(doctor.judge(doctor.TablesFound([row], {}), Settings()))
    assert [(each.check, each.level.value) for each in found] == [("late", "warn")]
    assert "headrace-spark-tables" in found[0].to_do
