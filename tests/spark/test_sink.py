"""Writing topics in a real Spark: the rows that a consumer reads, once, with errors that name what does not fit."""

from __future__ import annotations

import asyncio
import datetime
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures_clouds import ON_CLOUDS
from tests.spark.streams import run_to_end
from tests.spark.world import ScanWorld, has_admission_control, seen

SCHEMA = (
    "key string, value binary, partition int, timestamp timestamp, headers array<struct<key: string, value: binary>>"
)
TIME = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000)


async def write(world: ScanWorld, frame: Any, *, mode: str = "append", **options: Any) -> None:
    """A batch write, on this thread: Spark finds registered sources in its thread's session."""
    given = world.options | {name: str(value) for name, value in options.items()}
    frame.write.format("headrace").options(**given).mode(mode).save()


async def refused(work: Callable[[], Any]) -> str:
    """The text of the error that a write ends with."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    with pytest.raises((PySparkException, Py4JJavaError)) as failed:
        await work()
    return str(failed.value)


@pytest.mark.parametrize("world", ["directory", *ON_CLOUDS], indirect=True)
@pytest.mark.requirement("X6.3")
async def test_a_consumer_reads_what_was_written(world: ScanWorld, spark: Any) -> None:
    await world.topic("orders", 3)
    rows = [(f"key-{n % 50}", b"value-%d" % n, None, TIME, [("h", b"%d" % n), ("none", None)]) for n in range(500)]
    rows += [(None, None, 2, TIME, None), ("x", None, 1, TIME, []), ("y", b"", None, None, None)]
    frame = spark.createDataFrame(rows, SCHEMA).repartition(2)
    await write(world, frame, topic="orders")
    consumed = await world.consumed("orders")
    found = Counter((row.key, row.value, row.headers) for row in consumed if row.timestamp == 1_767_323_045_678)
    assert found == Counter(
        (None if key is None else key.encode(), value, tuple(headers or ()))
        for key, value, _, time, headers in rows if time is not None
    )  # fmt: skip
    assert len(consumed) == len(rows)
    places: dict[bytes, set[int]] = {}
    for row in consumed:
        places.setdefault(row.key or b"", set()).add(row.partition)
    assert places.pop(b"") == {2}
    assert places.pop(b"x") == {1}
    assert all(len(each) == 1 for each in places.values()), "a key has one partition"
    assert set.union(*places.values()) == {0, 1, 2}
    assert (
        seen(await asyncio.to_thread(world.frame(spark, subscribe="orders", includeHeaders="true").collect)) == consumed
    )
    await world.check_accounts()
    assert not await world.orphans()


@pytest.mark.requirement("X6.3")
async def test_a_topic_per_row_and_a_write_id(world: ScanWorld, spark: Any) -> None:
    await world.topic("a", 2)
    await world.topic("b", 1)
    frame = spark.range(300).selectExpr(
        "CAST(id AS STRING) AS value", "CASE WHEN id % 3 = 0 THEN 'a' ELSE 'b' END AS topic"
    )
    for _ in range(2):
        await write(world, frame, writeId="nightly-7", fileBytes=1 << 20)
    assert (len(await world.consumed("a")), len(await world.consumed("b"))) == (100, 200)
    assert await world.orphans(), "the second write's files"
    again = world.frame(spark, subscribe="b")
    await write(world, again, topic="a")
    assert len(await world.consumed("a")) == 300, "a topic that was read can be written as it is"


@pytest.mark.requirement("X6.3")
async def test_a_row_that_does_not_fit_ends_the_write_and_nothing_is_written(world: ScanWorld, spark: Any) -> None:
    await world.topic("table", 1, cleanup_policy="compact")
    frame = spark.range(2_000, numPartitions=2).selectExpr("'v' AS value", "IF(id = 1999, NULL, 'k') AS key")
    keyless = await refused(lambda: write(world, frame, topic="table"))
    assert "compacted topics take no record without a key: topic=table" in keyless
    assert "records are appended to topics" in await refused(
        lambda: write(world, frame, topic="table", mode="overwrite")
    )
    assert await world.consumed("table") == []
    assert not await world.file_rows()


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("key string", "column value is missing"),
        ("value bigint", "column value must be binary or string: bigint"),
        ("value string, id bigint", "unknown column: id"),
        ("value string, timestamp string", "column timestamp must be timestamp: string"),
        ("value string, headers array<string>", "column headers must be array<struct<key: string, value: binary>>"),
        ("value string", "no topic: give the option topic, or a column topic"),
    ],
)
def test_a_schema_that_does_not_fit_is_named(schema: str, text: str, spark: Any) -> None:
    from pyspark.sql.types import StructType

    from headrace.scan.errors import OptionError
    from headrace.spark.sink import check_schema

    with pytest.raises(OptionError) as wrong:
        check_schema(StructType.fromDDL(schema), has_topic="no topic" not in text)
    assert text in str(wrong.value)


def test_rows_of_an_older_pyspark_are_the_same_columns(spark: Any) -> None:
    """Before PySpark 4.1 a stream gives rows, not Arrow."""
    from pyspark.sql.types import StructType

    from headrace.spark.sink import chunks

    schema = StructType.fromDDL(SCHEMA)
    rows = [("k", bytearray(b"v"), 1, TIME, [{"key": "h", "value": None}]), (None, None, None, None, None)]
    (found,) = chunks(iter(rows), schema)
    assert (found.keys, found.values, found.partitions) == ([b"k", None], [b"v", None], [1, None])
    assert found.headers == [[("h", None)], []]
    assert found.timestamps == [round(TIME.timestamp() * 1_000), None]


async def copy_stream(world: ScanWorld, spark: Any, place: Path) -> None:
    """Run the query orders -> copy from its checkpoint until all is read."""

    def run() -> None:
        stream = spark.readStream.format("headrace").options(**world.options).options(
            subscribe="orders", startingOffsets="earliest", includeHeaders="true", maxOffsetsPerTrigger="20"
        ).load().drop("topic")  # fmt: skip
        writer = stream.writeStream.format("headrace").options(**world.options).option("topic", "copy")
        run_to_end(writer.option("checkpointLocation", str(place)).trigger(availableNow=True).start)

    run()


@pytest.mark.parametrize("world", ["directory", *ON_CLOUDS], indirect=True)
@pytest.mark.requirement("X6.3")
async def test_a_stream_writes_each_batch_once(world: ScanWorld, spark: Any, tmp_path: Path) -> None:
    """A driver that was killed after its commit runs the batch again; so it looks without Spark's own commit file. Then
    it goes on."""
    place = tmp_path / "checkpoint"
    (key,) = await world.topic("orders", 1)
    await world.topic("copy", 1)
    for number in range(8):
        await world.write(key, number)
    await copy_stream(world, spark, place)
    batches = sorted(int(path.name) for path in (place / "commits").glob("[0-9]*"))
    assert len(batches) == (2 if has_admission_control() else 1)
    written = await world.consumed("copy")
    assert [row[2:] for row in written] == [row[2:] for row in await world.consumed("orders")]
    for path in (place / "commits").glob(f"*{batches[-1]}*"):
        path.unlink()
    await world.write(key, 99)
    await copy_stream(world, spark, place)
    after = await world.consumed("copy")
    assert after[: len(written)] == written
    assert len(after) == len(written) + 3
