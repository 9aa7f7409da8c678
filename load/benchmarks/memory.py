"""Resident memory of one agent under steady produce and fetch load, against the budget that its settings add up to.

`python -m load memory [--seconds 60] [--rate 1500]`. `headrace dev` with its defaults, or with settings given
as NAME=VALUE; raw Produce requests of 64 KiB (load/workloads/raw_producer.py), and a librdkafka consumer group that
follows them. Printed every ten seconds: resident size; at the end: the most of each part that a scrape saw, its limit,
and the sum.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from confluent_kafka import Consumer

from headrace.config.memory_budget import MIB
from load.dev_server import AgentAddress, DevServer
from load.harness import Benchmark, BenchmarkRun

PARTITIONS = 12
TOPIC = "bench"
_SAMPLE = re.compile(r'^headrace_memory_(limit_)?bytes\{part="(\w+)"\} (\S+)$', re.MULTILINE)


class MemoryParts:
    """What /metrics says of the parts."""

    def __init__(self) -> None:
        self.most: dict[str, float] = {}
        self.limits: dict[str, float] = {}

    def read(self, agent: AgentAddress) -> None:
        """One scrape."""
        with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=60) as response:
            text = response.read().decode()
        for is_limit, part, value in _SAMPLE.findall(text):
            kept = self.limits if is_limit else self.most
            kept[part] = max(float(value), kept.get(part, 0.0))


def resident_bytes(pid: int, field: str = "VmRSS") -> int:
    """VmRSS, or VmHWM for the most so far, of /proc."""
    match = re.search(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def _consume(bootstrap: str, ended: threading.Event, seen: list[int]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    while not ended.is_set():
        seen[0] += sum(len(message) for message in consumer.consume(1_000, 0.2) if message.error() is None)
    consumer.close()


def _run(run: BenchmarkRun, server: DevServer) -> None:
    args = run.args
    agent = server.agents[0]
    asyncio.run(server.create_topic(TOPIC, PARTITIONS))
    parts, ended, seen = MemoryParts(), threading.Event(), [0]
    run.row("idle", {"MiB resident": resident_bytes(agent.pid) / MIB})
    reader = threading.Thread(target=_consume, args=(agent.kafka, ended, seen))
    reader.start()
    port = agent.kafka.rpartition(":")[2]
    flags = ["--seconds", str(args.seconds), "--rate", str(args.rate), "--request-bytes", "65536"]
    flags += ["--port", port, "--topic", TOPIC, "--partitions", str(PARTITIONS), "--connections", "16"]
    producer = subprocess.Popen(
        [sys.executable, "-m", "load.workloads.raw_producer", *flags], stdout=subprocess.DEVNULL
    )
    began, shown = time.monotonic(), 0
    while producer.poll() is None:
        parts.read(agent)
        if (passed := int((time.monotonic() - began) // 10)) > shown:
            shown = passed
            run.row(f"after {10 * passed} s", {"MiB resident": resident_bytes(agent.pid) / MIB})
        time.sleep(0.1)
    ended.set()
    reader.join()
    for part, limit in sorted(parts.limits.items(), key=lambda each: -each[1]):
        figures = {"MiB at most": parts.most[part] / MIB} if part in parts.most else {}
        run.row(part, figures | {"MiB of limit": limit / MIB})
    budget, most_resident = sum(parts.limits.values()), resident_bytes(agent.pid, "VmHWM")
    figures = {"MiB at most": most_resident / MIB, "MiB of budget": budget / MIB}
    run.row("resident", figures | {"of the budget": most_resident / budget, "MB consumed": seen[0] / 1e6})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=0, help="requests/s; 0: as fast as the agent answers")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings of the agent")


def benchmark(run: BenchmarkRun) -> None:
    settings: dict[str, object] = dict(setting.split("=", 1) for setting in run.args.settings)
    with run.dev_server(settings=settings) as server:
        _run(run, server)


BENCHMARK = Benchmark("resident memory of an agent against its budget", benchmark, add_arguments)
