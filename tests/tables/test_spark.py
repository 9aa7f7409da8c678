"""Spark 4.1 with Iceberg's own runtime reads what the worker appended, and rewrites and expires it meanwhile.

The lines are those of `headrace tables show`; only the jars come from the tools instead of Maven.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shlex
import subprocess
from pathlib import Path

import fastavro
import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.tables.listing import TableAddress, spark_lines
from tests.spark.world import ScanWorld
from tests.tables.registry import avro_bytes
from tests.tables.test_valued_tables import batch, named, renamed
from tests.tables.value_history import ValueHistory
from tests.tables.values.test_value_columns import AVRO
from tests.tables.world import Tables
from tests.tools import ICEBERG_JARS, ICEBERG_SPARK
from tests.tools.python_apps import python_of

pytestmark = pytest.mark.requirement("X11")

SECONDS_MAX = 300
ROWS = "SELECT to_json(struct(partition, offset, unix_millis(timestamp) AS at, hex(key) AS key, hex(value) AS value))"


def spark_rows(tables: Tables, properties: dict[str, str]) -> list[tuple[int, int]]:
    """Return partition and offset of each row of the table `orders`."""
    printed = sql(tables, "orders", f"{ROWS} FROM {{}}", properties=properties)
    rows = [json.loads(line) for line in printed if line.startswith("{")]
    return sorted((row["partition"], row["offset"]) for row in rows)


def sql(tables: Tables, name: str, *statements: str, properties: dict[str, str] | None = None) -> list[str]:
    """Return what spark-sql prints for these statements; `{}` is the table. `properties`: of the catalog."""
    table = tables.load(name)
    if properties is None:
        properties = {key: tables.failing.properties[key] for key in ("uri", "warehouse")}
    address = TableAddress("test", properties, f"headrace.{name}", table.metadata_location)
    return run_sql(address, tables.folder, *statements)


def run_sql(address: TableAddress, folder: Path, *statements: str) -> list[str]:
    """Return what spark-sql prints for these statements; `{}` is the table."""
    words = shlex.split(spark_lines(address).replace("\\\n", " "))
    where = words.index("--packages")
    words[where : where + 2] = ["--jars", ",".join(map(str, ICEBERG_JARS.glob("*.jar")))]
    words[-1] = "; ".join(statements).replace("{}", f"test.{address.identifier}")
    python = python_of(ICEBERG_SPARK)
    (home,) = python.parents[1].glob("lib/python*/site-packages/pyspark")
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SPARK_HOME")}
    environment |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)}
    more = ["--conf", "spark.sql.session.timeZone=UTC", "--conf", "spark.ui.enabled=false"]
    done = subprocess.run(
        [str(home / "bin" / words[0]), *more, *words[1:]],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()


async def check(world: ScanWorld, tables: Tables, printed: list[str]) -> None:
    """The rows are those of a consumer."""
    rows = [json.loads(line) for line in printed if line.startswith("{")]
    found = sorted((r["partition"], r["offset"], r["at"], r.get("key"), r.get("value")) for r in rows)
    assert found == [
        (row.partition, row.offset, row.timestamp, _hex(row.key), _hex(row.value))
        for row in await world.consumed("orders")
    ]


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex().upper()


@pytest.mark.slow
@pytest.mark.needs("iceberg-spark")
async def test_spark_reads_the_columns_of_each_avro_type(world: ScanWorld, tables: Tables) -> None:
    fields = [{"name": f"f{n}", "type": renamed(kind, n)} for n, (_, kind, *_) in enumerate(AVRO)]
    schema = {"type": "record", "name": "Order", "fields": fields}
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=("avro", json.dumps(schema)), layout=["day"])
    value = {f"f{n}": named(value, n) for n, (*_, value, _) in enumerate(AVRO)}
    await world.commit((key, batch(avro_bytes(fastavro.parse_schema(schema), value), b"", None)))
    await tables.follow()
    printed = await asyncio.to_thread(sql, tables, "orders", "SELECT to_json(struct(*)) FROM {}")
    rows = sorted((json.loads(line) for line in printed if line.startswith("{")), key=lambda r: r["kafka"]["offset"])
    assert [row["kafka"]["offset"] for row in rows] == [0, 2]
    assert rows[1].keys() == {"kafka"}
    have = {f"f{n}" for n, (*_, read) in enumerate(AVRO) if read is not None}
    assert rows[0].keys() == have | {"kafka"}
    by_name = {name: rows[0][f"f{n}"] for n, (name, *_) in enumerate(AVRO) if f"f{n}" in rows[0]}
    assert (by_name["decimal"], by_name["date"], by_name["time-micros"]) == (-1.5, "2026-01-02", "01:02:03.000004")
    assert by_name["timestamp-millis"] == "2026-01-02T12:00:00.000Z"


@pytest.mark.slow
@pytest.mark.needs("iceberg-spark")
async def test_spark_reads_rewrites_and_expires_while_the_worker_continues(world: ScanWorld, tables: Tables) -> None:
    a, b = await world.topic("orders", 2)
    await tables.create("orders", layout=["day"])
    for number in range(4):
        await world.write(a, number)
        await world.write(b, number * 40_000, 2)
        await tables.follow()
    select = f"{ROWS} FROM {{}}"
    maintenance = (
        select,
        "CALL test.system.rewrite_data_files(table => 'headrace.orders', options => map('rewrite-all', 'true'))",
        "CALL test.system.rewrite_manifests(table => 'headrace.orders')",
        "CALL test.system.expire_snapshots(table => 'headrace.orders', older_than => TIMESTAMP '2999-01-01 00:00:00',"
        " retain_last => 1)",
    )
    printed = await asyncio.to_thread(sql, tables, "orders", *maintenance)
    await check(world, tables, printed)
    assert len(tables.load().snapshots()) == 1
    assert not any(re.match("Error", line) for line in printed)
    await world.write(a, 9)
    await tables.follow()
    await tables.check()
    await check(world, tables, await asyncio.to_thread(sql, tables, "orders", select))


@pytest.mark.slow
@pytest.mark.needs("iceberg-spark")
@pytest.mark.parametrize("seed", range(3))
def test_spark_keeps_nulls_of_what_the_worker_wrote(tmp_path: Path, seed: int) -> None:
    history = ValueHistory(tmp_path, random.Random(seed))
    history.tell()
    rewrite = "CALL test.system.rewrite_data_files(table => 'values.orders', options => map('rewrite-all', 'true'))"
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": (tmp_path / "warehouse").as_uri()}
    run_sql(history.address()._replace(properties=properties), tmp_path, rewrite)
    history.check()
    history.add([b"{}"], [b"last"], [None])
    history.rows[history.next - 1] = b"last", {}, None
    history.keep()
    history.check()
