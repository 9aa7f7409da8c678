"""A topic becomes an Iceberg table in three ways, in one run: the local worker, headrace-spark-tables, Iceberg's own.

    python -m load table_ways --megabytes 300 --rounds 2            MB/s and CPU s/GB
    python -m load table_ways --rate 1000 --seconds 30              freshness of the local worker
Iceberg's own way is Spark's Kafka source through an agent and writeStream to Iceberg
(load/workloads/kafka_to_iceberg.py). Time and CPU of Spark are with its start. Freshness: from a record's
timestamp, which its producer sets, to the commit that has it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from confluent_kafka import Producer

from headrace.cli.bench.window import ProcessUsage
from headrace.config.settings import Settings
from headrace.scan.cluster import BucketAddress, open_cluster
from headrace.scan.partitions import TopicCatalog
from headrace.scan.read import SplitReader
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError
from headrace.tables.catalog import CatalogAddress, view_of
from headrace.tables.looking import TableReader
from headrace.tables.state import Definition, Follows, standing_of
from headrace.tables.worker import TableWorker
from load.benchmarks.spark_scan import PARTITIONS, produce
from load.benchmarks.tables import TOPIC, append
from load.dev_server import DevServer
from load.harness import Benchmark, BenchmarkRun
from tests.tools import ICEBERG_JARS, ICEBERG_SPARK, SPARK_KAFKA_JARS, why_missing
from tests.tools.python_apps import python_of

ROOT = Path(__file__).resolve().parents[2]
SAMPLE_SECONDS = 0.2


class Way(NamedTuple):
    """One append of the whole topic. CPU in seconds, of all its processes."""

    name: str
    seconds: float
    cpu: float
    agent_cpu: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--megabytes", type=int, default=300, help="of values")
    parser.add_argument("--record-bytes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rate", type=int, help="records per second: freshness instead of speed")
    parser.add_argument("--seconds", type=int, default=30, help="of --rate")
    parser.add_argument("--interval-ms", type=int, default=1_000, help="between commits, of --rate")


def benchmark(run: BenchmarkRun) -> None:
    args, place = run.args, run.place
    with run.dev_server() as server:
        asyncio.run(server.create_topic(TOPIC, PARTITIONS))
        if args.rate:
            ages = asyncio.run(freshness(server, place, args.rate, args.seconds, args.interval_ms))
            p50, p99 = np.percentile(ages, (50, 99))
            run.row(f"{args.rate} records/s, in the table after", {"ms p50": p50, "ms p99": p99, "records": len(ages)})
            return
        size = produce(server.bootstrap, args.megabytes * 1_000_000, args.record_bytes, "none")
        ways = [way for number in range(args.rounds) for way in one_round(server, place, number)]
    for each in ways:
        run.row(each.name, figures_of(each, size))
    for name in dict.fromkeys(each.name for each in ways):
        mine = [each for each in ways if each.name == name]
        middle = Way(f"median {name}", *(statistics.median(part) for part in zip(*(e[1:] for e in mine), strict=True)))
        run.row(middle.name, figures_of(middle, size))


def figures_of(way: Way, size: int) -> dict[str, float]:
    """Return the row of one way."""
    figures = {"MB/s": size / way.seconds / 1e6, "CPU s/GB": way.cpu / size * 1e9}
    return figures | {"CPU s/GB of the agent": way.agent_cpu / size * 1e9}


def settings_of(server: DevServer, place: Path) -> Settings:
    """Settings with a catalog in a file."""
    return msgspec.structs.replace(
        Settings(),
        metastore_url=server.metastore_url,
        bucket=server.bucket,
        tables_catalog_name="bench",
        tables_catalog_uri=f"sqlite:///{place}/catalog.db",
        tables_warehouse=(place / "warehouse").as_uri(),
    )


def one_round(server: DevServer, place: Path, number: int) -> Iterator[Way]:
    """Each way once, to a new table each."""
    local = asyncio.run(append(server, place, "binary"))
    yield Way("local worker", local.seconds, local.worker_cpu, local.agent_cpu)
    yield spark_tables(server, place, f"spark{number}")
    yield icebergs_own(server, place / f"own{number}")


def spark_tables(server: DevServer, place: Path, name: str) -> Way:
    """`headrace-spark-tables` on one table of a catalog without others."""
    folder = place / name
    folder.mkdir()
    settings = settings_of(server, folder)
    asyncio.run(create(settings, name))
    seconds, used = run_spark_tables(server, settings, 16 * 1024 * 1024)
    return Way("headrace-spark-tables", seconds, used["way"], used["agent"])


def run_spark_tables(server: DevServer, settings: Settings, split_bytes: int) -> tuple[float, dict[str, float]]:
    """Run the command in local mode with two tasks; seconds, and the seconds of CPU by `way` and `agent`."""
    given = {
        "HEADRACE_METASTORE_URL": settings.metastore_url,
        "HEADRACE_BUCKET": settings.bucket,
        "HEADRACE_TABLES_CATALOG_NAME": settings.tables_catalog_name,
        "HEADRACE_TABLES_CATALOG_URI": settings.tables_catalog_uri,
        "HEADRACE_TABLES_WAREHOUSE": settings.tables_warehouse,
        "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false --driver-memory 2g pyspark-shell",
        "PYSPARK_PYTHON": sys.executable,
    }
    words = [sys.executable, "-m", "headrace.spark.tables.application", "--split-bytes", str(split_bytes)]
    with measured(words, given, server) as (process, used):
        printed, said = process.communicate()
    assert process.returncode == 0, said[-2_000:]
    (seconds,) = re.findall(r"tables on spark ended:.* seconds=([\d.]+)", printed)
    return float(seconds), used


def icebergs_own(server: DevServer, warehouse: Path) -> Way:
    """The same by Spark's Kafka source and writeStream."""
    printed, used = run_with_iceberg("load.workloads.kafka_to_iceberg", server, warehouse, "0")
    (seconds,) = re.findall(r"seconds ([\d.]+)", printed)
    return Way("Kafka source and writeStream", float(seconds), used["way"], used["agent"])


def run_with_iceberg(program: str, server: DevServer, warehouse: Path, *more: str) -> tuple[str, dict[str, float]]:
    """Run a program in the environment with PySpark 4.1; what it prints, and the seconds of CPU by `way` and `agent`.

    Its arguments: bootstrap, topic, warehouse, jars, `more`.
    """
    for tool in ("spark-kafka", ICEBERG_SPARK):
        if reason := why_missing(tool):
            raise InvalidError(f"not installed: {tool}: {reason}")
    needed = [each for each in SPARK_KAFKA_JARS.glob("*.jar") if "spark-sql-kafka" not in each.name]
    jars = ",".join(map(str, [*ICEBERG_JARS.glob("*.jar"), *needed]))
    python = str(python_of(ICEBERG_SPARK))
    words = [python, "-m", program, server.bootstrap, TOPIC, warehouse.as_uri(), jars, *more]
    with measured(words, {"PYSPARK_PYTHON": python, "PYTHONPATH": str(ROOT)}, server) as (process, used):
        printed, said = process.communicate()
    assert process.returncode == 0, said[-2_000:]
    return printed, used


@contextmanager
def measured(
    words: list[str], given: Mapping[str, str], server: DevServer
) -> Iterator[tuple[subprocess.Popen[str], dict[str, float]]]:
    """A process, and what it and the agent used; its CPU is read until it has ended."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **given}
    environment.pop("SPARK_HOME", None)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        with subprocess.Popen(words, env=environment, stdout=out, stderr=log, text=True) as process:
            usage = ProcessUsage({"way": [process.pid], "agent": [server.agents[0].pid]})
            used = before = usage.cpu_seconds()
            while process.poll() is None:
                now = usage.cpu_seconds()  # less than before once Spark has ended its workers
                used = {name: max(seconds, now[name]) for name, seconds in used.items()}
                time.sleep(SAMPLE_SECONDS)
        out.seek(0)
        log.seek(0)
        texts = out.read(), log.read()
        process.communicate = lambda *_, **__: texts  # type: ignore[method-assign]
        yield process, {"way": used["way"], "agent": used["agent"] - before["agent"]}


async def create(settings: Settings, name: str) -> None:
    """Create an empty table."""
    catalog = CatalogAddress.of(settings).open()
    async with open_cluster(settings) as cluster:
        topic = (await TopicCatalog(cluster.metastore.cluster).refresh()).topics_by_name[TOPIC]
        catalog.create(name, Definition(cluster.metastore.cluster_id, TOPIC, topic.topic_id, "earliest", ""), (), {})
    catalog.close()


async def freshness(
    server: DevServer, place: Path, rate: int, seconds: int, interval_ms: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return how many ms after its timestamp each record was in the table."""
    settings, name = settings_of(server, place), "fresh"
    await create(settings, name)
    catalog = CatalogAddress.of(settings).open()
    reader = SplitReader.open(BucketAddress.of(settings), SystemClock(), random.Random(), pin_hint="")
    words = [
        sys.executable,
        "-c",
        f"from load.benchmarks.table_ways import steadily; steadily({server.bootstrap!r}, {rate}, {seconds})",
    ]
    commits: list[tuple[int, dict[int, int]]] = []
    try:
        async with open_cluster(settings) as cluster:
            worker = TableWorker(TableReader(cluster, TopicCatalog(cluster.metastore.cluster), catalog), reader)
            with subprocess.Popen(words) as producer:  # noqa: ASYNC220 -- it only starts
                while True:
                    is_over = producer.poll() is not None
                    while (done := await worker.keep(name)).outcome is not None:
                        now_ms = round(time.time() * 1_000)
                        standing = standing_of(view_of(catalog.load(name)))
                        assert isinstance(standing, Follows)
                        commits.append((now_ms, {p: e.offset for p, e in standing.progress.positions.items()}))
                        if not done.has_more:
                            break
                    if is_over and done.outcome is None:
                        break
                    await asyncio.sleep(interval_ms / 1_000)
        rows = catalog.load(name).scan(selected_fields=("partition", "offset", "timestamp")).to_arrow()
    finally:
        reader.close()
        catalog.close()
    return _ages(rows, commits)


def _ages(rows: object, commits: list[tuple[int, dict[int, int]]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    partitions, offsets = (rows.column(each).to_numpy() for each in ("partition", "offset"))  # type: ignore[attr-defined]
    times = rows.column("timestamp").cast("int64").to_numpy() // 1_000  # type: ignore[attr-defined]
    found = np.zeros(len(offsets), dtype=np.int64)
    at = np.array([each for each, _ in commits])
    for partition in np.unique(partitions):
        mine = partitions == partition
        ends = np.array([positions.get(int(partition), 0) for _, positions in commits])
        found[mine] = at[np.searchsorted(ends, offsets[mine], side="right")] - times[mine]
    return found


def steadily(bootstrap: str, rate: int, seconds: int) -> None:
    """Produce so many records of 100 bytes each second."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    value, began, sent = b"x" * 100, time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        while sent < now * rate:
            producer.produce(TOPIC, value, key=b"%d" % sent)
            sent += 1
        producer.poll(0.005)
    assert producer.flush(600) == 0


BENCHMARK = Benchmark(
    "a topic becomes an Iceberg table by the local worker, headrace-spark-tables, and Spark's Kafka source",
    benchmark,
    add_arguments,
)
