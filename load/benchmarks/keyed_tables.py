"""A topic with many records per key becomes an Iceberg table with a row per key: by headrace-spark-tables, and by
Iceberg's MERGE INTO, in one run.

    python -m load keyed_tables --records 10000000 --keys 1000000
First the whole topic to a new table, then --more records to the table that is there. MERGE INTO is of Spark 4.1, which
reads the topic through an agent (load/workloads/kafka_merge.py). Both are Spark in local mode with two tasks and a JVM
heap of 2 GB, started again for each step. Times are those of the programs, with Spark's start; CPU of the process tree.
The cleaning of such a topic on Spark is measured by `python -m load spark_compaction --only keyed`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from headrace.config.settings import Settings
from headrace.scan.cluster import open_cluster
from headrace.scan.partitions import TopicCatalog
from headrace.tables.catalog import CatalogAddress
from headrace.tables.creating import NewTable, Values, create_table
from load.benchmarks.spark_scan import PARTITIONS
from load.benchmarks.table_ways import run_spark_tables, run_with_iceberg, settings_of
from load.benchmarks.tables import TOPIC
from load.dev_server import DevServer
from load.harness import Benchmark, BenchmarkRun

NAME = "keyed"


class KeyedWay(NamedTuple):
    """One merge. CPU in seconds; `rows`: of the table after it."""

    name: str
    seconds: float
    cpu: float
    agent_cpu: float
    rows: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--more", type=int, default=1_000_000, help="records of the second merge")
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--split-megabytes", type=int, default=64)
    parser.add_argument("--alone", action="store_true", help="without MERGE INTO")


def benchmark(run: BenchmarkRun) -> None:
    args, place = run.args, run.place
    with run.dev_server() as server:
        asyncio.run(server.create_topic(TOPIC, PARTITIONS, {"cleanup.policy": "compact"}))
        settings = settings_of(server, place)
        for step, count in (("new table", args.records), ("table with rows", args.more)):
            size = produce(server.bootstrap, count, args.keys, args.record_bytes, seed=count)
            if step == "new table":
                asyncio.run(create(settings))
            way = spark_tables(server, settings, args.split_megabytes * 1024 * 1024)
            run.row(f"{step}, {way.name}", figures_of(way, count, size))
            if not args.alone:
                other = merge_into(server, place)
                run.row(f"{step}, {other.name}", figures_of(other, count, size))


def figures_of(way: KeyedWay, records: int, size: int) -> dict[str, float]:
    """Return the row of one merge."""
    return {
        "records/s": records / way.seconds,
        "MB/s of keys and values": size / way.seconds / 1e6,
        "s": way.seconds,
        "CPU s": way.cpu,
        "CPU s of the agent": way.agent_cpu,
        "rows": way.rows,
    }


def produce(bootstrap: str, count: int, keys: int, record_bytes: int, seed: int) -> int:
    """Produce so many records with random keys; bytes of keys and values."""
    rng = random.Random(seed)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 500_000, "partitioner": "murmur2_random",
         "queue.buffering.max.messages": 1_000_000}
    )  # fmt: skip
    values = [rng.randbytes(record_bytes // 2).hex().encode() for _ in range(1_000)]
    size = 0
    for number in range(count):
        key = b"%012d" % rng.randrange(keys)
        value = values[number % 1_000]
        size += len(key) + len(value)
        while True:
            try:
                producer.produce(TOPIC, value, key=key)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1_000 == 0:
            producer.poll(0)
    assert producer.flush(600) == 0
    return size


async def create(settings: Settings) -> None:
    """Create the keyed table, empty."""
    catalog = CatalogAddress.of(settings).open()
    async with open_cluster(settings) as cluster:
        topic = (await TopicCatalog(cluster.metastore.cluster).refresh()).topics_by_name[TOPIC]
        await create_table(cluster, catalog, topic, NewTable(NAME, "earliest", (), {}, Values(is_keyed=True)))
    catalog.close()


def spark_tables(server: DevServer, settings: Settings, split_bytes: int) -> KeyedWay:
    """`headrace-spark-tables` on the table."""
    seconds, used = run_spark_tables(server, settings, split_bytes)
    catalog = CatalogAddress.of(settings).open()
    snapshot = catalog.load(NAME).current_snapshot()
    catalog.close()
    assert snapshot is not None
    assert snapshot.summary is not None
    rows = int(snapshot.summary.additional_properties["total-records"])
    return KeyedWay("headrace-spark-tables", seconds, used["way"], used["agent"], rows)


def merge_into(server: DevServer, place: Path) -> KeyedWay:
    """The same by Spark's Kafka source and MERGE INTO of Iceberg."""
    printed, used = run_with_iceberg("load.workloads.kafka_merge", server, place / "own")
    (found,) = re.findall(r"seconds ([\d.]+) rows (\d+)", printed)
    return KeyedWay("Kafka source and MERGE INTO", float(found[0]), used["way"], used["agent"], int(found[1]))


BENCHMARK = Benchmark(
    "a topic becomes an Iceberg table with a row per key, by headrace-spark-tables and by MERGE INTO",
    benchmark,
    add_arguments,
)
