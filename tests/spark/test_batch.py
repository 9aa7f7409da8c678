"""Batch reads: the rows are what a Kafka consumer reads, with the options of Spark's Kafka source."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from headrace.storage.cluster_properties import write_cluster_id
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.records.compression import Codec
from tests.agent.fetch.fetch_world import NEVER_SEEN
from tests.fixtures_clouds import ON_CLOUDS
from tests.fixtures_s3 import BUCKET
from tests.spark.world import TIME_MS, ScanWorld, records, seen
from tests.storage.batches import plain_batch


async def rows(frame: Any) -> list[Any]:
    """`collect` blocks."""
    return await asyncio.to_thread(frame.collect)


async def refusal(make: Callable[[], Any]) -> str:
    """The text of the error that an action ends with."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    with pytest.raises((PySparkException, Py4JJavaError)) as failed:
        await asyncio.to_thread(lambda: make().collect())
    return str(failed.value)


@pytest.mark.parametrize("world", ["directory", *ON_CLOUDS], indirect=True)
@pytest.mark.requirement("X6.1")
async def test_rows_are_what_a_consumer_reads(world: ScanWorld, spark: Any) -> None:
    a, b, c = await world.topic("orders", 3)
    (other,) = await world.topic("other", 1)
    dead = plain_batch(2, b"dead" * 50, **NEVER_SEEN)
    for number, codec in enumerate([*Codec, Codec.NONE, Codec.ZSTD]):
        await world.commit(
            (a, records(number, codec=codec)), (a, dead), (b, records(number, 2, log_append_time=True)),
            (c, dead), (other, records(99)),
        )  # fmt: skip
        if number == 3:
            await world.compact(1)
            await world.compact(2)
    await world.delete_records(a, 4)
    consumed = await world.consumed("orders")

    frame = world.frame(spark, subscribe="orders", includeHeaders="true")
    assert seen(await rows(frame)) == consumed
    assert frame.dtypes == [
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"), ("offset", "bigint"),
        ("timestamp", "timestamp"), ("timestampType", "int"), ("headers", "array<struct<key:string,value:binary>>"),
    ]  # fmt: skip


async def places(frame: Any) -> list[tuple[int, int]]:
    """(partition, offset) of each row."""
    return sorted((row.partition, row.offset) for row in await rows(frame.select("partition", "offset")))


@pytest.mark.requirement("X6.1")
async def test_offsets_and_timestamps_bound_a_read(world: ScanWorld, spark: Any) -> None:
    a, b = await world.topic("orders", 2)
    for number in range(6):
        await world.commit((a, records(number)), (b, records(number, 2)))

    def read(**options: Any) -> Any:
        return world.frame(
            spark, **{"subscribe": "orders", "columns": "partition,offset,timestamp", "minPartitions": 4} | options
        )

    bounds = {
        "startingOffsets": json.dumps({"orders": {"0": 4, "1": -2}}),
        "endingOffsets": json.dumps({"orders": {"0": -1, "1": 7}}),
    }
    expected = [(0, offset) for offset in range(4, 18)] + [(1, offset) for offset in range(7)]
    assert await places(read(**bounds)) == expected
    assert read(**bounds).rdd.getNumPartitions() >= 4
    since = read(startingTimestamp=TIME_MS + 4_001, endingTimestamp=TIME_MS + 5_001)
    assert await places(since) == [(0, 13), (0, 14), (0, 15), (1, 9), (1, 10)]
    by_timestamp = json.dumps({"orders": {"0": TIME_MS + 5_000, "1": TIME_MS + 60_000}})
    assert "no record is so new: orders-1" in await refusal(lambda: read(startingOffsetsByTimestamp=by_timestamp))
    late = read(startingOffsetsByTimestamp=by_timestamp, startingOffsetsByTimestampStrategy="latest")
    assert await places(late) == [(0, 15), (0, 16), (0, 17)]


@pytest.mark.slow
@pytest.mark.requirement("X6.1")
async def test_topics_by_pattern_and_partitions_one_by_one(world: ScanWorld, spark: Any) -> None:
    keys = [key for name in ("eu.orders", "us.orders", "orders.eu") for key in await world.topic(name, 2)]
    for key in keys:
        await world.write(key, 1, 2)
    frame = world.frame(spark, subscribePattern=r"\w+\.orders", columns="topic,offset")
    assert {row.topic for row in await rows(frame)} == {"eu.orders", "us.orders"}
    assert frame.columns == ["topic", "offset"]
    assert await rows(world.frame(spark, subscribePattern="nothing.*")) == []
    assigned = world.frame(spark, assign='{"us.orders":[1]}', columns="key,value,partition,offset")
    assert await places(assigned) == [(1, 0), (1, 1)]


async def test_errors_name_what_is_wrong(world: ScanWorld, spark: Any) -> None:
    (key,) = await world.topic("orders", 1)
    for number in range(3):
        await world.write(key, number)
    await world.delete_records(key, 4)

    def read(**options: Any) -> Any:
        return world.frame(spark, **{"subscribe": "orders"} | options)

    assert "topic does not exist: topic=ordres" in await refusal(lambda: read(subscribe="ordres"))
    text = await refusal(lambda: read(assign='{"orders":[0,3]}', subscribe=None))
    assert "partition does not exist: topic=orders partition=3 partitions=1" in text
    text = await refusal(lambda: read(startingOffsets='{"orders":{"0":2}}'))
    assert "offsets are not in the log: partition=orders-0 offsets=2-8: the log has 4 to 8" in text
    assert "failOnDataLoss" in text
    assert "offsets=4-19" in await refusal(lambda: read(endingOffsets='{"orders":{"0":20}}'))
    assert "lacks orders-0 and names orders-1" in await refusal(lambda: read(startingOffsets='{"orders":{"1":2}}'))
    assert "unknown option: startingoffset (did you mean startingOffsets?)" in await refusal(
        lambda: read(startingOffset="latest")
    )
    assert "readPinMs exceeds the cluster's read.pin.max.ms" in await refusal(lambda: read(readPinMs=10**9))
    lenient = read(startingOffsets='{"orders":{"0":2}}', endingOffsets='{"orders":{"0":20}}', failOnDataLoss="false")
    assert await places(lenient) == [(0, offset) for offset in range(4, 9)]


@pytest.mark.slow
async def test_a_damaged_file_is_named_and_nothing_of_its_batch_is_returned(world: ScanWorld, spark: Any) -> None:
    (key,) = await world.topic("orders", 1)
    await world.write(key, 1)
    (extent,) = await world.extents(key)
    path = next(path for path in world.bucket.rglob(str(extent.file_id)))
    body = bytearray(path.read_bytes())
    body[extent.position + extent.length - 1] ^= 1
    path.chmod(0o600)
    path.write_bytes(body)
    text = await refusal(lambda: world.frame(spark, subscribe="orders"))
    assert f"segment file is damaged: topic=orders partition=0 offsets=0-2 file={extent.file_id}" in text


@pytest.mark.requirement("X6.1")
async def test_a_bucket_on_s3(world: ScanWorld, spark: Any, real_s3_url: str) -> None:
    prefix = f"s3://{BUCKET}/{uuid.uuid4()}"
    options = StoreOptions(s3_endpoint=real_s3_url, s3_region="us-east-1", s3_path_style=True)
    local, world.store = world.store, open_store(prefix, options, clock=world.clock, rng=world.rng)  # type: ignore[assignment]
    await write_cluster_id(world.store, world.postgres.cluster_id)
    world.service = world.new_service()
    await world.service.start()
    (key,) = await world.topic("orders", 1)
    for number in range(3):
        await world.write(key, number, codec=Codec.ZSTD)
    frame = world.frame(
        spark, **{"subscribe": "orders", "includeHeaders": "true", "bucket": prefix, "s3.endpoint": real_s3_url,
                  "s3.region": "us-east-1", "s3.path.style": "true"},
    )  # fmt: skip
    assert seen(await rows(frame)) == await world.consumed("orders")
    await world.service.close()
    await world.store.close()
    world.store = local
    world.service = world.new_service()
