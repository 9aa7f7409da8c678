"""readStream in a real Spark: rate limits, Trigger.AvailableNow, restarts from the checkpoint, a killed JVM."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures_clouds import ON_CLOUDS
from tests.spark.streams import SPARK_SECONDS, run_to_end
from tests.spark.world import ScanWorld, has_admission_control, records, seen

DRIVER = Path(__file__).parent / "stream_driver.py"


async def available_now(world: ScanWorld, spark: Any, place: Path, **options: Any) -> Any:
    """Run the query from its checkpoint until all is read; the query."""

    def run() -> Any:
        stream = (
            spark.readStream.format("headrace")
            .options(**world.options, subscribe="orders", startingOffsets="earliest", includeHeaders="true")
            .options(**{name: str(value) for name, value in options.items()})
            .load()
        )
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
        return run_to_end(lambda: writer.trigger(availableNow=True).start(str(place / "rows")))

    return await asyncio.to_thread(run)


@pytest.mark.parametrize("world", ["directory", *ON_CLOUDS], indirect=True)
@pytest.mark.requirement("X6.2")
async def test_restarts_and_new_partitions_bring_every_row_once(world: ScanWorld, spark: Any, tmp_path: Path) -> None:
    keys = await world.topic("orders", 2)
    for number in range(6):
        await world.commit(*((key, records(number)) for key in keys))
    query = await available_now(world, spark, tmp_path, maxOffsetsPerTrigger=20)
    sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    assert sizes == ([20, 16] if has_admission_control() else [36])

    await world.compact(1)
    keys = await world.grow("orders", 3)
    for number in range(6, 9):
        await world.commit(*((key, records(number)) for key in keys))
    await available_now(world, spark, tmp_path)
    await available_now(world, spark, tmp_path)
    rows = await asyncio.to_thread(lambda: spark.read.parquet(str(tmp_path / "rows")).collect())
    assert seen(rows) == await world.consumed("orders")
    if has_admission_control():
        assert not await world.pins(), "every pin is released"
    else:  # Spark ends the planning process without a word: the last batch's pin ends with its term
        assert len(await world.pins()) <= 3, "at most one of each query"


@pytest.mark.slow
@pytest.mark.requirement("X6.2")
async def test_a_killed_jvm_goes_on_from_its_checkpoint(world: ScanWorld, spark: Any, tmp_path: Path) -> None:
    keys = await world.topic("orders", 2)
    for number in range(40):
        await world.commit(*((key, records(number)) for key in keys))
    driver = subprocess.Popen(  # noqa: ASYNC220 -- nothing else runs on this loop
        [sys.executable, str(DRIVER), world.url, world.bucket.as_uri(), str(tmp_path)],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(SPARK_SECONDS):
            while len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) < 2:
                assert driver.poll() is None, driver.communicate()[0].decode()
                if not has_admission_control():  # else the first batch is the only one
                    await world.commit(*((key, records(0)) for key in keys))
                await world.clock.sleep(0.05)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    committed = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
    assert committed < 24 or not has_admission_control(), "it was killed in the middle"
    for number in range(40, 43):
        await world.commit(*((key, records(number)) for key in keys))
    await available_now(world, spark, tmp_path)
    rows = await asyncio.to_thread(lambda: spark.read.parquet(str(tmp_path / "rows")).collect())
    assert seen(rows) == await world.consumed("orders")
