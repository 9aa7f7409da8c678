"""Rows of Kafka's own load generator, org.apache.kafka.tools.ProducerPerformance.

Place: called by loads.py.
Invariant: the generator is bounded by records, not by time, so trials before a row's first run on a target find out how
many records take the time of a run. The figures of trials are not used.
Its records have random values and no numbers: read back are how many there are, at consecutive offsets.
Source: org.apache.kafka.tools.ProducerPerformance of Kafka 4.1; heap as in bin/kafka-producer-perf-test.sh.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.cli.bench.kafka_target import find_jars, find_java
from headrace.cli.bench.measurement import Measurement
from headrace.cli.bench.orders import OFFSETS
from headrace.cli.bench.rows import JavaProduce, Row
from headrace.cli.bench.target_bench import TargetBench
from headrace.cli.bench.window import Window, measure
from headrace.cli.kernel_calls import die_with_parent
from headrace.storage.errors import UnavailableError

CLASS = "org.apache.kafka.tools.ProducerPerformance"
JVM = ("-Xmx512M",)
FIRST_RECORDS = 500
GROWTH_MAX = 20
"""Most growth from one trial to the next."""
LONG_ENOUGH = 0.5
"""The part of a run's time that the last trial takes at least, its start not counted."""
CONNECT_SECONDS = 0.4
"""About what the generator's start takes of the time that it reports."""
TOTALS = re.compile(
    r"^(?P<records>\d+) records sent, (?P<rate>[\d.]+) records/sec \([\d.]+ MB/sec\), "
    r"[\d.]+ ms avg latency, [\d.]+ ms max latency, "
    r"(?P<p50>\d+) ms 50th, \d+ ms 95th, (?P<p99>\d+) ms 99th, \d+ ms 99\.9th\.",
    re.MULTILINE,
)
"""The last line; the lines before have no percentiles."""


class PerformanceTotals(NamedTuple):
    """What the generator prints in the end."""

    records: int
    seconds: float
    p50_ms: float
    p99_ms: float


def parse_totals(printed: str) -> PerformanceTotals:
    """UnavailableError if the line with the totals is not there, or no record was sent."""
    match = TOTALS.search(printed)
    if match is None or float(match["rate"]) == 0:
        lines = [line for line in printed.splitlines() if line.strip()]
        raise UnavailableError(f"ProducerPerformance printed no totals: {lines[-1] if lines else 'nothing at all'}")
    records = int(match["records"])
    return PerformanceTotals(records, records / float(match["rate"]), float(match["p50"]), float(match["p99"]))


def next_records(totals: PerformanceTotals, seconds: float, records_max: int) -> int:
    """Return how many records take `seconds` after a trial, or how many the next trial has. Pure."""
    growth = min(seconds / max(totals.seconds - CONNECT_SECONDS, 0.001), GROWTH_MAX)
    return max(1, min(int(totals.records * growth), records_max))


def long_enough(totals: PerformanceTotals, seconds: float) -> bool:
    """Return whether a trial says how many records take `seconds`. Pure."""
    return totals.seconds - CONNECT_SECONDS >= seconds * LONG_ENOUGH


def performance_command(
    java: str, jars: Path, bootstrap: str, topic: str, records: int, load: JavaProduce
) -> list[str]:
    """The generator's command line. Pure."""
    client: Mapping[str, str] = {"bootstrap.servers": bootstrap} | load.client
    return [
        *(java, *JVM, "-cp", f"{jars}/*", CLASS, "--topic", topic, "--num-records", str(records)),
        *("--record-size", str(load.value_bytes), "--throughput", "-1", "--producer-props"),
        *(f"{name}={value}" for name, value in client.items()),
    ]


async def run_java(bench: TargetBench, row: Row, load: JavaProduce) -> Measurement:
    """One measurement; ConfigError without Java or jars."""
    if row.name not in bench.java_records:
        bench.java_records[row.name] = await _find_records(bench, load)
    records = bench.java_records[row.name]
    async with bench.topic(load.partitions) as topic:
        totals, window = await _send(bench, topic, records, load)
        extents = await bench.extents(topic)
        read = await bench.read_back(topic, load.partitions, records, OFFSETS)
        await bench.verify(topic, load.partitions, read, records, idempotent=True)
    measurement = bench.measurement(row, window, totals.records, load.value_bytes, totals.seconds)
    measurement.extents, measurement.read_back = extents, read.records
    measurement.produce_p50_ms, measurement.produce_p99_ms = totals.p50_ms, totals.p99_ms
    return measurement


async def _find_records(bench: TargetBench, load: JavaProduce) -> int:
    records = min(FIRST_RECORDS, bench.bounds.records)
    while True:
        async with bench.topic(load.partitions) as topic:
            totals, _ = await _send(bench, topic, records, load)
        records = next_records(totals, bench.bounds.seconds, bench.bounds.records)
        if long_enough(totals, bench.bounds.seconds) or records == totals.records:
            return records


async def _send(bench: TargetBench, topic: str, records: int, load: JavaProduce) -> tuple[PerformanceTotals, Window]:
    command = performance_command(find_java(), find_jars(bench.jars), bench.target.bootstrap, topic, records, load)
    async with measure(bench.target, bench.clock) as window:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
        printed, _ = await process.communicate()
    totals = parse_totals(printed.decode(errors="replace"))
    if totals.records != records:
        raise UnavailableError(f"ProducerPerformance sent other records: wanted={records} sent={totals.records}")
    return totals, window
