"""All cores of a machine: `headrace agent --processes N` against one process: produce throughput and CPU, in one run.

`python -m load processes [--processes 2] [--seconds 10] [--rounds 3]`. Real commands on a real Postgres, with a
directory as bucket; raw Produce requests (load/workloads/raw_producer.py) from one process per agent, as many
connections in each case. The rounds alternate, so that both meet the same machine. The load, Postgres and the agents
share the cores: with as many processes as cores, the ratio of throughput says less than that of bytes per second of the
agents' CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cli.main import main as headrace
from headrace.config.settings import Settings
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore
from load.harness import Benchmark, BenchmarkRun
from load.postgres_server import cpu_seconds, read_cost

PARTITIONS = 12
CONNECTIONS, IN_FLIGHT = 16, 40
"""Enough for requests to wait for the agents."""
WARM_UP_SECONDS = 2.0


@dataclass
class Figures:
    """Measured values of one number of processes, a value per round."""

    megabytes_per_second: list[float] = field(default_factory=list)
    agents_seconds_per_gb: list[float] = field(default_factory=list)
    postgres_seconds_per_gb: list[float] = field(default_factory=list)

    def medians(self) -> dict[str, float]:
        """Return the row."""
        return {
            "MB/s": statistics.median(self.megabytes_per_second),
            "s/GB of agents": statistics.median(self.agents_seconds_per_gb),
            "s/GB of Postgres": statistics.median(self.postgres_seconds_per_gb),
            "rounds": len(self.megabytes_per_second),
        }


@contextmanager
def _agents(url: str, bucket: str, processes: int) -> Iterator[tuple[list[int], list[int]]]:
    """Ports and process ids of the agents."""
    command = [sys.executable, "-m", "headrace.cli.main", "agent", "--processes", str(processes)]
    places = ["--metastore-url", url, "--bucket", bucket, "--listeners", "PLAINTEXT://127.0.0.1:0", "--http-port", "0"]
    running = subprocess.Popen(
        [*command, *places, "--log-level", "warning", "--cache-bytes", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout is not None
        line = running.stdout.readline()
        match = re.search(r"kafka=(\S+)", line)
        if match is None:
            raise RuntimeError(f"not ready: {line!r}")
        ports = [int(address.rpartition(":")[2]) for address in match[1].split(",")]
        forked = [pid for server in _children(running.pid) for pid in _children(server)]
        yield ports, forked or [running.pid]
    finally:
        running.terminate()
        running.wait()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _spent(pids: list[int]) -> float:
    """CPU of all threads."""
    return sum(cpu_seconds(int(thread.name)) for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir())


async def _produce(ports: list[int], topic: str, request_bytes: int, seconds: float) -> tuple[int, float]:
    """(bytes, seconds), from one generator per port."""
    flags = ["--topic", topic, "--partitions", str(PARTITIONS), "--request-bytes", str(request_bytes)]
    flags += ["--connections", str(CONNECTIONS // len(ports)), "--inflight", str(IN_FLIGHT), "--seconds", str(seconds)]
    generators = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "load.workloads.raw_producer",
            "--port",
            str(port),
            *flags,
            stdout=asyncio.subprocess.PIPE,
        )
        for port in ports
    ]
    sent = [json.loads((await generator.communicate())[0]) for generator in generators]
    if any(each["errors"] for each in sent):
        raise RuntimeError(f"agents answered with errors: {[each['errors'] for each in sent]}")
    return sum(each["bytes"] for each in sent), max(each["seconds"] for each in sent)


def _measure(url: str, bucket: str, topic: str, processes: int, args: argparse.Namespace, figures: Figures) -> None:
    with _agents(url, bucket, processes) as (ports, pids):
        asyncio.run(_produce(ports, topic, args.request_bytes, WARM_UP_SECONDS))
        agents, postgres = _spent(pids), read_cost(url)
        size, seconds = asyncio.run(_produce(ports, topic, args.request_bytes, args.seconds))
        figures.megabytes_per_second.append(size / seconds / 1e6)
        figures.agents_seconds_per_gb.append((_spent(pids) - agents) / size * 1e9)
        figures.postgres_seconds_per_gb.append(read_cost(url).since(postgres).cpu_seconds / size * 1e9)


async def _create_topic(url: str) -> str:
    metastore = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
    await metastore.topics.create_topics(
        await metastore.cluster.metadata_head(), [NewTopic("bench", uuid.uuid4(), PARTITIONS, {})]
    )
    await metastore.close()
    return "bench"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--request-bytes", type=int, default=16 * 1024)


def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    figures = {1: Figures(), args.processes: Figures()}
    bucket = run.folder("bucket")
    with EmbeddedPostgres(run.folder("postgres")) as url:
        cluster_id = migrate(url).cluster_id
        flags = ["--metastore-url", url, "--bucket", bucket.as_uri(), "-t", cluster_id, "-g"]
        headrace(["storage", "format", *flags])
        topic = asyncio.run(_create_topic(url))
        run.note(f"requests of {args.request_bytes} bytes, medians")
        for _ in range(args.rounds):
            for processes, of in figures.items():
                _measure(url, bucket.as_uri(), topic, processes, args, of)
    for processes, of in figures.items():
        run.row(f"{processes} process{'es' if processes > 1 else ''}", of.medians())


BENCHMARK = Benchmark("several agents under one command, against one", benchmark, add_arguments)
