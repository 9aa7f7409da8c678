"""Spark's scan of a topic: from the segment files, and with Spark's own Kafka source through an agent, in turns.

    python -m load spark_scan --megabytes 1000 --record-bytes 1000 --rounds 3 --plot scan.png
Starts `headrace dev` on a directory, produces the topic with librdkafka, and reads it with both sources in one Spark
(load/workloads/spark_sources.py). CPU: of Spark (JVM and Python workers) and of the agent, in seconds per 10^9 bytes of
values.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from headrace.cli.bench.window import ProcessUsage
from load.dev_server import DevServer
from load.harness import Benchmark, BenchmarkRun
from tests.tools import SPARK_KAFKA_JARS, why_missing

TOPIC = "scanned"
PARTITIONS = 12


class TimedScan(NamedTuple):
    """One scan. CPU in seconds."""

    source: str
    seconds: float
    spark_cpu: float
    agent_cpu: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--megabytes", type=int, default=1_000, help="of values")
    parser.add_argument("--record-bytes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compression", default="none", help="the producer's")
    parser.add_argument("--plot", type=Path, help="a .png file to draw")


def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    with run.dev_server() as server:
        asyncio.run(server.create_topic(TOPIC, PARTITIONS))
        size = produce(server.bootstrap, args.megabytes * 1_000_000, args.record_bytes, args.compression)
        scans = scan(server, args.rounds)
    report(run, scans, size)
    if args.plot:
        draw(scans, size, args.plot)


def produce(
    bootstrap: str,
    size: int,
    record_bytes: int,
    compression: str,
    made_of: Callable[[int, bytes], bytes] = lambda _, text: text,
) -> int:
    """Bytes of values that were produced: random text that compresses about as JSON does. `made_of` makes a value of a
    number and its text.
    """
    rng = random.Random(1)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": compression, "linger.ms": 50, "batch.size": 500_000}
    )
    words = [rng.randbytes(6).hex().encode() for _ in range(2_000)]
    values = [b" ".join(rng.choices(words, k=record_bytes // 13 + 1))[:record_bytes] for _ in range(1_000)]
    values = [made_of(number, text) for number, text in enumerate(values)]
    count = size * len(values) // sum(map(len, values))
    for number in range(count):
        while True:
            try:
                producer.produce(TOPIC, values[number % 1_000], key=b"%d" % number)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(600) == 0
    return sum(len(values[number % 1_000]) for number in range(count))


def scan(server: DevServer, rounds: int) -> list[TimedScan]:
    """The scans of one Spark."""
    jars = "" if why_missing("spark-kafka") else ",".join(str(path) for path in SPARK_KAFKA_JARS.glob("*.jar"))
    options = json.dumps({"metastore.url": server.metastore_url, "bucket": server.bucket})
    command = [
        sys.executable,
        "-m",
        "load.workloads.spark_sources",
        options,
        server.bootstrap,
        TOPIC,
        str(rounds),
        jars,
    ]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    scans, hashes = [], set()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as spark:
        usage = ProcessUsage({"spark": [spark.pid], "agent": [server.agents[0].pid]})
        before: dict[str, float] = {}
        assert spark.stdout is not None
        for line in spark.stdout:
            match line.split():
                case ["begin", _]:
                    before = usage.cpu_seconds()
                case ["end", source, seconds, *rows]:
                    after = usage.cpu_seconds()
                    used = {name: after[name] - before[name] for name in after}
                    scans.append(TimedScan(source, float(seconds), used["spark"], used["agent"]))
                    hashes.add(tuple(rows))
    assert spark.returncode == 0
    assert len(hashes) == 1, f"the sources differ: {hashes}"
    return scans


def medians(scans: list[TimedScan], size: int) -> dict[str, tuple[float, float, float]]:
    """Return the medians by source: MB/s, CPU seconds per GB of Spark and of the agent."""
    gigabytes = size / 1e9
    found = {}
    for source in dict.fromkeys(one.source for one in scans):
        own = [one for one in scans if one.source == source]
        seconds, spark, agent = (
            statistics.median(getattr(one, name) for one in own) for name in ("seconds", "spark_cpu", "agent_cpu")
        )
        found[source] = (size / 1e6 / seconds, spark / gigabytes, agent / gigabytes)
    return found


def report(run: BenchmarkRun, scans: list[TimedScan], size: int) -> None:
    """Tell each scan, the medians and their ratio."""
    for one in scans:
        run.row(one.source, {"s": one.seconds, "CPU s of Spark": one.spark_cpu, "CPU s of the agent": one.agent_cpu})
    found = medians(scans, size)
    for source, (rate, spark, agent) in found.items():
        figures = {"MB/s": rate, "CPU s/GB of Spark": spark, "of the agent": agent, "of both": spark + agent}
        run.row(f"median {source}", figures)
    if len(found) == 2:
        (rate, *own), (other_rate, *others) = found["headrace"], found["kafka"]
        run.row("headrace / kafka", {"of the MB/s": rate / other_rate, "of the CPU": sum(own) / sum(others)})


def draw(scans: list[TimedScan], size: int, place: Path) -> None:
    """Bars: MB/s, and CPU seconds per GB."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = medians(scans, size)
    names = list(found)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3.2))
    left.bar(names, [found[name][0] for name in names], color="#4878a8")
    left.set_ylabel("MB/s of values")
    right.bar(names, [found[name][1] for name in names], label="Spark", color="#4878a8")
    right.bar(
        names, [found[name][2] for name in names], bottom=[found[name][1] for name in names], label="agent",
        color="#d8a048",
    )  # fmt: skip
    right.set_ylabel("CPU seconds per GB")
    right.legend()
    figure.tight_layout()
    figure.savefig(place, dpi=120)


BENCHMARK = Benchmark("Spark reads a topic from segment files, next to Spark's Kafka source", benchmark, add_arguments)
