"""A topic appended to an Iceberg table by the local worker: MB/s and CPU, of the worker and of the agent meanwhile.

    python -m load tables --megabytes 500 --record-bytes 1000 --rounds 3
Starts `headrace dev` on a directory, produces the topic with librdkafka, and appends it to a new table for each round
in this process; the catalog is a file. --value-format avro or json: values with four fields become columns.
CPU in seconds per 10^9 bytes of values.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import statistics
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import msgspec

from headrace.config.settings import Settings
from headrace.scan.cluster import BucketAddress, open_cluster
from headrace.scan.partitions import TopicCatalog
from headrace.scan.read import SplitReader
from headrace.storage.clock import SystemClock
from headrace.tables.catalog import CatalogAddress
from headrace.tables.looking import TableReader
from headrace.tables.state import Definition
from headrace.tables.worker import TableWorker
from load.benchmarks.spark_scan import PARTITIONS, produce
from load.dev_server import DevServer
from load.harness import Benchmark, BenchmarkRun

TOPIC = "scanned"


class TimedAppend(NamedTuple):
    """One table. CPU in seconds."""

    seconds: float
    worker_cpu: float
    agent_cpu: float
    commits: int
    rows: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--megabytes", type=int, default=500, help="of values")
    parser.add_argument("--record-bytes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--value-format", default="binary", choices=("binary", "avro", "json"))
    parser.add_argument("--compression", default="none", help="the producer's")


def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    with run.dev_server() as server:
        asyncio.run(server.create_topic(TOPIC, PARTITIONS))
        made_of = MADE_OF[args.value_format]
        size = produce(server.bootstrap, args.megabytes * 1_000_000, args.record_bytes, args.compression, made_of)
        timed = [asyncio.run(append(server, run.place, args.value_format)) for _ in range(args.rounds)]
    report(run, timed, size)


def fields(number: int, text: bytes) -> dict[str, Any]:
    """Return a value's fields."""
    return {"id": number, "price": number / 8, "is_paid": number % 3 == 0, "note": text.decode()}


def in_avro(number: int, text: bytes) -> bytes:
    """Return a value in Avro."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, AVRO, fields(number, text))
    return buffer.getvalue()


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": name, "type": kind}
        for name, kind in (("id", "long"), ("price", "double"), ("is_paid", "boolean"), ("note", "string"))
    ],
}
MADE_OF: dict[str, Callable[[int, bytes], bytes]] = {
    "binary": lambda _, text: text,
    "avro": in_avro,
    "json": lambda number, text: json.dumps(fields(number, text)).encode(),
}


async def append(server: DevServer, place: Path, value_format: str) -> TimedAppend:
    """Append the whole topic to a new table."""
    schema = json.dumps(AVRO) if value_format == "avro" else ""
    settings = msgspec.structs.replace(
        Settings(),
        metastore_url=server.metastore_url,
        bucket=server.bucket,
        tables_catalog_name="bench",
        tables_catalog_uri=f"sqlite:///{place}/catalog.db",
        tables_warehouse=(place / "warehouse").as_uri(),
    )
    name, catalog = f"t{uuid.uuid4().hex}", CatalogAddress.of(settings).open()
    reader = SplitReader.open(BucketAddress.of(settings), SystemClock(), random.Random(), pin_hint="")
    agent = server.agents[0].pid
    try:
        async with open_cluster(settings) as cluster:
            topics = TopicCatalog(cluster.metastore.cluster)
            topic = (await topics.refresh()).topics_by_name[TOPIC]
            catalog.create(
                name,
                Definition(cluster.metastore.cluster_id, TOPIC, topic.topic_id, "earliest", "", value_format, schema),
                (),
                {},
            )
            worker = TableWorker(TableReader(cluster, topics, catalog), reader)
            began, cpu, agent_cpu = time.monotonic(), time.process_time(), _cpu_of(agent)
            rows = commits = 0
            while (done := await worker.keep(name)).has_more:
                rows, commits = rows + done.rows, commits + 1
            rows += done.rows
            return TimedAppend(
                time.monotonic() - began, time.process_time() - cpu, _cpu_of(agent) - agent_cpu, commits + 1, rows
            )
    finally:
        reader.close()
        catalog.close()


def _cpu_of(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(run: BenchmarkRun, timed: list[TimedAppend], size: int) -> None:
    """Tell each round, and the medians."""
    for number, each in enumerate(timed, 1):
        figures = {
            "MB/s": size / each.seconds / 1e6,
            "CPU s/GB of the worker": each.worker_cpu / size * 1e9,
            "CPU s/GB of the agent": each.agent_cpu / size * 1e9,
            "commits": each.commits,
            "rows": each.rows,
        }
        run.row(f"round {number}", figures)
    speed = statistics.median(size / each.seconds / 1e6 for each in timed)
    cpu = statistics.median(each.worker_cpu / size * 1e9 for each in timed)
    run.row("median", {"MB/s": speed, "CPU s/GB of the worker": cpu})


BENCHMARK = Benchmark("the local worker appends a topic to an Iceberg table: MB/s, CPU", benchmark, add_arguments)
