"""What TLS costs: CPU seconds per GB written and read, with and without it, next to Apache Kafka's, in one run.

Place: `python -m load tls [--kafka JARS] [--megabytes 500] [--rounds 3]`. Each server has two listeners; Headrace
is one agent on a new Postgres and a directory, and its CPU is that of both. The client is librdkafka: an idempotent
producer with 1 MB batches of 10 KB values, then one consumer from the start. All servers run at once, and rounds with
and without TLS take turns; medians are printed. The client's own CPU is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import confluent_kafka

from headrace.cli.bench.targets import DEV, KAFKA, MeasuredTarget, TargetSpec, open_target
from headrace.cli.bench.topic_admin import create_topic, delete_topic
from headrace.cli.bench.window import ProcessUsage
from headrace.config.free_ports import free_ports
from load.harness import Benchmark, BenchmarkRun
from load.self_signed import write_certificate

VALUE_BYTES = 10_000
SECONDS_MAX = 300.0
COUNTED = ("agent", "postgres", "kafka")
Settings = Mapping[str, Any]
"""Settings of a librdkafka client."""


def write(settings: Settings, topic: str, count: int) -> None:
    """Return when all values are acknowledged."""
    producer = confluent_kafka.Producer(
        {**settings, "enable.idempotence": True, "batch.size": 1_000_000, "linger.ms": 50, "log_level": 0}
    )
    value = random.Random(1).randbytes(VALUE_BYTES)
    failures: list[object] = []

    def settled(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value, on_delivery=settled)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(SECONDS_MAX) or failures:
        raise RuntimeError(f"not everything was written: {failures[:1]}")


def read(settings: Settings, topic: str, count: int) -> None:
    """Return when all values were read."""
    group = {"group.id": "bench", "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0}
    consumer = confluent_kafka.Consumer({**settings, **group})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    done = 0
    while done < count:
        found = consumer.consume(1_000, SECONDS_MAX)
        if not found:
            raise RuntimeError(f"not everything was read: {done} of {count}")
        done += sum(message.error() is None for message in found)
    consumer.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--kafka", type=Path, help="folder with Apache Kafka's jars; without it, Headrace alone")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)


def benchmark(run: BenchmarkRun) -> None:
    asyncio.run(_measure(run))


async def _measure(run: BenchmarkRun) -> None:
    directory, jars, megabytes, rounds = run.place, run.args.kafka, run.args.megabytes, run.args.rounds
    certificate, key = write_certificate(directory)
    both = directory / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    ports = iter(free_ports(4))
    headrace, kafka = next(ports), next(ports)
    specs = [(TargetSpec("headrace", DEV, settings=_two_listeners(0, headrace, both)), headrace)]
    if jars is not None:
        plain, controller = next(ports), next(ports)
        specs.append((TargetSpec("kafka", KAFKA, settings=_kafka_settings(plain, kafka, controller, both)), kafka))
    spent: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        opened: list[tuple[MeasuredTarget, dict[str, Settings]]] = []
        for spec, port in specs:
            (directory / spec.name).mkdir()
            target = await stack.enter_async_context(open_target(spec, directory / spec.name, jars))
            opened.append((target, _clients(target.bootstrap, port, certificate)))
        for number in range(rounds):
            for target, clients in opened:
                for kind, client in clients.items():
                    for work, seconds in await asyncio.to_thread(_round, target, client, f"{kind}-{number}", megabytes):
                        spent[target.name, work, kind].append(seconds / (megabytes / 1_000))
    run.note(f"{megabytes} MB in values of {VALUE_BYTES} bytes, medians of {rounds} rounds")
    for name in dict.fromkeys(name for name, _, _ in spent):
        for work in ("write", "read"):
            clear, tls = (statistics.median(spent[name, work, kind]) for kind in ("plain", "TLS"))
            figures = {"CPU s/GB": clear, "CPU s/GB with TLS": tls, "of without": tls / clear}
            run.row(f"{name}, {work}", figures)


def _round(target: MeasuredTarget, client: Settings, topic: str, megabytes: int) -> list[tuple[str, float]]:
    """Return what writing and what reading took, in CPU seconds of the server."""
    usage = ProcessUsage({kind: pids for kind, pids in target.roots.items() if kind in COUNTED})
    create_topic(target.bootstrap, topic, 1)
    found = []
    for name, work in (("write", write), ("read", read)):
        before = sum(usage.cpu_seconds().values())
        work(client, topic, megabytes * 1_000_000 // VALUE_BYTES)
        found.append((name, sum(usage.cpu_seconds().values()) - before))
    delete_topic(target.bootstrap, topic)
    return found


def _clients(bootstrap: str, port: int, certificate: Path) -> dict[str, Settings]:
    secure = {"security.protocol": "SSL", "ssl.ca.location": str(certificate)}
    return {
        "plain": {"bootstrap.servers": bootstrap},
        "TLS": {"bootstrap.servers": f"127.0.0.1:{port}", **secure},
    }


def _two_listeners(plain: int, secure: int, both: Path) -> dict[str, str]:
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{secure}",
        "ssl.keystore.location": str(both),
    }


def _kafka_settings(plain: int, secure: int, controller: int, both: Path) -> dict[str, str]:
    settings = _two_listeners(plain, secure, both)
    protocols = ("CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", "SSL:SSL")
    return settings | {
        "listeners": f"{settings['listeners']},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": settings["listeners"],
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": ",".join(protocols),
        "ssl.keystore.type": "PEM",
    }


BENCHMARK = Benchmark("CPU of TLS per GB written and read, next to Kafka's", benchmark, add_arguments)
