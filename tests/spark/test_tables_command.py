"""The command `headrace-spark-tables` as a program: it is killed while Spark works, and the next run continues."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")
pytest.importorskip("pyspark", reason="pyspark is needed: make setup")

from headrace.config.declared import declared
from headrace.config.load import load
from headrace.tables.catalog import CatalogAddress
from tests.fixtures_clouds import ON_CLOUDS
from tests.house.needs import require
from tests.java_program import FLAGS
from tests.spark.world import ScanWorld, records
from tests.tables.test_spark import ROWS, check, sql
from tests.tables.world import Tables

pytestmark = [pytest.mark.requirement("X11"), pytest.mark.slow]
SECONDS_MAX = 600


class Command:
    """Runs it with the settings of one world."""

    def __init__(self, world: ScanWorld, tables: Tables, warehouse: str = "") -> None:
        """`warehouse`: where the tables' files are, if not where the world's catalog has them."""
        self.log = tables.folder / "spark.log"
        options = " ".join(FLAGS)
        settings = world.options | {
            "tables.catalog.name": "test",
            "tables.catalog.uri": tables.catalog_uri,
            "tables.warehouse": warehouse or tables.failing.properties["warehouse"],
        }
        self.settings = load(environ={}, flags=settings)
        self.environment = os.environ | {declared()[name].environment: value for name, value in settings.items()}
        self.environment |= {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": f"--master local[2] --conf spark.ui.enabled=false --driver-java-options '{options}'"
            " pyspark-shell",
        }

    def start(self) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "headrace.spark.tables.application", "--split-bytes", "250"]
        with self.log.open("a", encoding="utf-8") as log:
            return subprocess.Popen(
                words, env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )

    def run(self) -> str:
        """The summary, of a run with exit status 0."""
        with self.start() as process:
            printed, _ = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0, self.log.read_text(encoding="utf-8")[-3_000:]
        return printed.splitlines()[-1]

    def lines(self, part: str) -> int:
        """Return how many log lines have this in them."""
        return self.log.read_text(encoding="utf-8").count(part) if self.log.exists() else 0


@pytest.fixture
def tables(world: ScanWorld, tmp_path: Path) -> Tables:
    require("java")
    return Tables(world, tmp_path / "iceberg")


@pytest.mark.parametrize("world", ON_CLOUDS, indirect=True)
async def test_bucket_and_warehouse_are_on_a_cloud(world: ScanWorld, tables: Tables, cloud_keys: None) -> None:
    """The executors read and write there. What they write is read by this process."""
    a, b = await world.topic("orders", 2)
    command = Command(world, tables, f"{world.place['bucket']}-lake")
    tables.catalog = await asyncio.to_thread(CatalogAddress.of(command.settings).open)
    await tables.create("orders", layout=["day"])
    for number in range(6):
        await world.commit((a, records(40_000 * number)), (b, records(number, 2)))
    assert "failed=0" in await asyncio.to_thread(command.run)
    assert command.lines("written by spark")
    await tables.check()


@pytest.mark.needs("iceberg-spark")
async def test_a_driver_that_is_killed_leaves_no_row_twice_and_spark_sql_reads_the_table(
    world: ScanWorld, tables: Tables
) -> None:
    a, b = await world.topic("orders", 2)
    await tables.create("orders", layout=["day"])
    command = Command(world, tables)
    for steps in range(3):
        for number in range(4):
            await world.write(a, 10 * steps + number)
            await world.write(b, 40_000 * number, 2)
        said = command.lines("appended: table=orders")
        with command.start() as process:
            async with asyncio.timeout(SECONDS_MAX):
                while process.poll() is None:
                    if steps == 0 and (command.lines("SparkContext") or command.lines("Using Spark")):
                        break  # Spark starts
                    if steps == 1 and tables.files():
                        break  # tasks have written
                    if command.lines("appended: table=orders") > said:
                        break  # the commit is there
                    await asyncio.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL)
    assert (await asyncio.to_thread(command.run)).startswith("tables on spark ended: following=1 ")
    await tables.check()
    assert command.lines("written by spark")
    await check(world, tables, await asyncio.to_thread(sql, tables, "orders", f"{ROWS} FROM {{}}"))
    await world.write(a, 99)
    assert "failed=0" in await asyncio.to_thread(command.run)
    await tables.check()
