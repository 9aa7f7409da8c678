"""The first records after an agent's start on S3: `python -m load first_records [--records 1000] [--rounds 3]`.

In turns, each time a new cluster with one agent: on S3 behind the latency proxy of `headrace bench` with and without
low.latency.enable, and on a directory. As soon as the agent is ready, an idempotent librdkafka producer sends records
of 1 KB to 12 partitions, each when the one before is acknowledged: the row "one record at a time" of
python -m load compare_on_s3, which comes after a warm-up; here all are counted from the very first one on.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import time
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from headrace.cli.bench.orders import percentile
from headrace.cli.bench.rows import ONE, PARTITIONS
from headrace.cli.bench.targets import open_target, parse_target
from headrace.cli.bench.topic_admin import create_topic
from headrace.config.settings import Settings
from load.benchmarks.compare_on_s3 import FAR, LOW, OFF
from load.harness import Benchmark, BenchmarkRun

TARGETS = {
    "small files in Postgres, S3": f"low=dev {FAR} {LOW}",
    "S3": f"s3=dev {FAR} {OFF}",
    "a directory": f"directory=dev {OFF}",
}
FIRST = 20
"""After so many records an agent without low latency waits for linger: early flushes cost money."""
TOPIC = "first"
WAIT_SECONDS = 60.0
REFUSED = re.compile(r"^headrace_produce_not_inline_total\{[^}]*\} (\S+)$", re.MULTILINE)


def send(bootstrap: str, records: int) -> list[float]:
    """Return the time of each record from its produce call to its answer, in ms. RuntimeError if one is refused."""
    producer = Producer(ONE.client | {"bootstrap.servers": bootstrap})
    value, taken, failures = random.Random(1).randbytes(ONE.value_bytes), list[float](), list[KafkaError]()

    def answered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)
        taken.append((time.monotonic() - sent_at) * 1e3)

    for number in range(records):
        sent_at = time.monotonic()
        producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=answered)
        while len(taken) <= number and time.monotonic() < sent_at + WAIT_SECONDS:
            producer.poll(1.0)
        if failures or len(taken) <= number:
            raise RuntimeError(f"record {number} was not acknowledged: {failures}")
    return taken


async def start_and_send(target: str, folder: Path, records: int) -> tuple[list[float], int]:
    """Return the times of the first records on a new cluster, and how many of their requests with low latency went into
    the bucket.
    """
    async with open_target(parse_target(target), folder, None) as running:
        await asyncio.to_thread(create_topic, running.bootstrap, TOPIC, PARTITIONS, 1)
        taken = await asyncio.to_thread(send, running.bootstrap, records)
        pages = [await asyncio.to_thread(running.access.page, address, "/metrics") for address in running.metrics]
        return taken, sum(int(float(count)) for page in pages for count in REFUSED.findall(page))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--records", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)


async def benchmark(run: BenchmarkRun) -> None:
    args, linger_ms = run.args, Settings().linger_ms
    rounds: dict[str, list[list[float]]] = {name: [] for name in TARGETS}
    refused = dict.fromkeys(TARGETS, 0)
    for _ in range(args.rounds):
        for name, target in TARGETS.items():
            folder = run.folder("first") / "target"
            folder.mkdir()
            folder.chmod(0o711)
            taken, into_bucket = await start_and_send(target, folder, args.records)
            rounds[name].append(taken)
            refused[name] += into_bucket
    for name, found in rounds.items():
        together = [ms for of_round in found for ms in of_round]
        after_first = [ms for of_round in found for ms in of_round[1:]]
        first = [ms for of_round in found for ms in of_round[1:FIRST]]
        run.row(
            name,
            {
                "records": len(together),
                "ms p50": percentile(together, 50),
                "ms p99": percentile(together, 99),
                f"ms p50 of records 2 to {FIRST}": percentile(first, 50),
                "ms p99 of those": percentile(first, 99),
                "ms of the very first, most": max(of_round[0] for of_round in found),
                "ms longest of the others": max(after_first),
                f"answers after {linger_ms} ms or more": sum(ms >= linger_ms for ms in after_first),
                "requests that were refused to be inline": refused[name],
            },
        )


BENCHMARK = Benchmark(
    "the first 1,000 records after an agent's start, on S3 with and without low latency", benchmark, add_arguments
)
