"""An Iceberg REST catalog, that of Iceberg's own tests: the same histories as with a catalog in a file, and Spark."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.config.settings import Settings
from headrace.scan.errors import OptionError
from headrace.tables.catalog import CatalogAddress
from tests.spark.world import ScanWorld
from tests.tables.test_spark import spark_rows
from tests.tables.test_table_history import histories
from tests.tables.world import Tables
from tests.tools import ICEBERG_REST_JARS

pytestmark = [pytest.mark.requirement("X11"), pytest.mark.slow, pytest.mark.needs("iceberg-rest")]


@pytest.fixture
def rest_url(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a catalog without tables."""
    classes = f"{ICEBERG_REST_JARS}:{ICEBERG_REST_JARS}/*"
    words = ["java", "-cp", classes, "RestCatalog", str(tmp_path / "rest.db"), (tmp_path / "lake").as_uri()]
    with (
        (tmp_path / "rest.log").open("wb") as log,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


async def test_histories_with_a_rest_catalog(world: ScanWorld, tmp_path: Path, rest_url: str) -> None:
    tables = Tables(world, tmp_path / "iceberg", rest_url=rest_url)
    await histories(world, tables, range(3))
    await histories(world, tables, range(3), is_valued=True)


@pytest.mark.needs("iceberg-spark")
async def test_settings_open_it_and_spark_reads_it(world: ScanWorld, tmp_path: Path, rest_url: str) -> None:
    settings = Settings(tables_catalog_name="lake", tables_catalog_uri=rest_url)
    catalog = await asyncio.to_thread(CatalogAddress.of(settings).open)
    tables = Tables(world, tmp_path / "iceberg", rest_url=rest_url)
    tables.catalog = catalog
    (key,) = await world.topic("orders", 1)
    assert catalog.names() == []
    await tables.create("orders", layout=["day"])
    with pytest.raises(OptionError):
        await tables.create("orders", name="x", **{"format-version": "2"})
    for number in range(2):
        await world.write(key, number)
        await tables.follow()
    await tables.check()
    assert await asyncio.to_thread(spark_rows, tables, {"uri": rest_url}) == [
        (row.partition, row.offset) for row in await world.consumed("orders")
    ]
