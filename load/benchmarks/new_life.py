"""How long readers wait after Postgres is promoted: `python -m load new_life`.

A primary, a synchronous standby that is promoted when the primary crashes, and agents that know both. librdkafka
consumers read all partitions (assigned, each partition by one consumer). One record is produced to each partition, and
the program waits until every partition's reader has it: before the promotion, and directly after it. Nothing is lost,
but all leader epochs rise, so every position is checked again (KIP-320), and every agent forgets what it knew of the
old life. Printed for each round: seconds until everything was acknowledged and read, CPU of the agents, and their
look-ups of extents in Postgres.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from aiokafka import AIOKafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.main import main as headrace
from headrace.metastore.postgres.formatted import formatted_cluster_id
from load.agent_child import AgentChild
from load.harness import Benchmark, BenchmarkRun
from load.postgres_servers import Servers
from load.workloads.assigned_readers import AssignedReaders

TOPIC = "positions"
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.01


class AgentCost(NamedTuple):
    """Spent by all agents since their start."""

    cpu_seconds: float
    look_ups: float
    """Calls of look_up_extents, from the agents' metrics."""
    epoch_look_ups: float
    """Calls of find_epoch_ends: librdkafka checks each position in a separate request."""


def cost_of(agents: list[AgentChild]) -> AgentCost:
    """Read now."""
    metrics = [agent.metrics() for agent in agents]
    calls = [sum(_calls(text, name) for text in metrics) for name in ("look_up_extents", "find_epoch_ends")]
    return AgentCost(sum(agent.cpu_seconds() for agent in agents), *calls)


def _calls(metrics: str, name: str) -> float:
    found = re.findall(rf'^headrace_metastore_call_seconds_count\{{[^}}]*"{name}"[^}}]*\}} (\S+)$', metrics, re.M)
    return sum(map(float, found))


class Round(threading.Thread):
    """Produces one record to each partition; `acknowledged_at` is 0 until all are, by the monotonic clock."""

    def __init__(self, bootstrap: str, partitions: int, value: bytes) -> None:
        super().__init__()
        self.acknowledged_at = 0.0
        self._agents, self._partitions, self._value = bootstrap, partitions, value

    def run(self) -> None:
        """aiokafka, because it sends all partitions of an agent in one request."""
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self._agents, request_timeout_ms=60_000) as producer:
            sent = [await producer.send(TOPIC, self._value, partition=p) for p in range(self._partitions)]
            await asyncio.gather(*sent)
        self.acknowledged_at = time.monotonic()


def measure(
    run: BenchmarkRun, name: str, agents: list[AgentChild], readers: AssignedReaders, began: float, before: AgentCost
) -> None:
    """Produce a round, wait until all have read it, print the line. `began`: what the seconds count from."""
    value = name.encode()
    sending = Round(",".join(agent.kafka for agent in agents), readers.partitions, value)
    sending.start()
    until(readers, lambda: readers.have_all(value))
    read_at = time.monotonic()
    after = cost_of(agents)
    cpu, look_ups, epochs = (new - old for new, old in zip(after, before, strict=True))
    until(readers, lambda: not sending.is_alive())
    first = readers.first_at[value] - began
    figures = {
        "s until acknowledged": sending.acknowledged_at - began,
        "s until the first read": first,
        "s until all read": read_at - began,
        "s of the agents' CPU": cpu,
        "look-ups": look_ups,
        "checks of positions": epochs,
    }
    run.row(name, figures)


def until(readers: AssignedReaders, is_over: Callable[[], bool]) -> None:
    """Let the readers read until it is; RuntimeError when it takes too long."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not is_over():
        readers.read()
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"readers do not finish: {readers.describe()}")
        time.sleep(POLL_SECONDS)


def _lives(run: BenchmarkRun, home: Path, started: ExitStack) -> None:
    """Everything, in the order of the module's text."""
    arguments = run.args
    servers = started.enter_context(Servers(home / "postgres"))
    servers.add_standby("standby")
    servers.replicate_synchronously()
    shared = {"metastore.url": servers.url("primary", "standby"), "bucket": f"file://{home}/bucket"}
    cluster_id = formatted_cluster_id(servers.url("primary"))
    assert cluster_id is not None
    flags = [f"--{name.replace('.', '-')}={value}" for name, value in shared.items()]
    assert headrace(["storage", "format", "--ignore-formatted", "--cluster-id", cluster_id, *flags]) == 0
    agents = [started.enter_context(AgentChild(shared, home / f"agent-{n}.log")) for n in range(arguments.agents)]
    bootstrap = ",".join(agent.kafka for agent in agents)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, arguments.partitions, 1)])[TOPIC].result(60)
    readers = AssignedReaders(bootstrap, TOPIC, arguments.partitions, arguments.consumers)
    started.callback(readers.close)
    measure(run, "first", agents, readers, time.monotonic(), cost_of(agents))
    idle_from, before = time.monotonic(), cost_of(agents)
    until(readers, lambda: time.monotonic() > idle_from + arguments.idle_seconds)
    idle = cost_of(agents)
    used = idle.cpu_seconds - before.cpu_seconds
    run.row("idle", {"s of the agents' CPU": used, "s": float(arguments.idle_seconds)})
    measure(run, "before", agents, readers, time.monotonic(), idle)
    before = cost_of(agents)
    servers.crash("primary")
    crashed = time.monotonic()
    servers.promote("standby")
    run.row("promoted", {"s after the crash": time.monotonic() - crashed})
    measure(run, "after promotion", agents, readers, time.monotonic(), before)
    measure(run, "again", agents, readers, time.monotonic(), cost_of(agents))
    run.row("errors that consumers reported", {"errors": str(readers.errors or "none")})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--partitions", type=int, default=4_000)
    parser.add_argument("--consumers", type=int, default=100)
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--idle-seconds", type=int, default=5, help="how long the CPU without load is measured")


def benchmark(run: BenchmarkRun) -> None:
    args, home = run.args, run.folder("lives")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it has a line for each partition's retry
    run.note(f"{args.partitions} partitions, {args.consumers} consumers, {args.agents} agents")
    (home / "postgres").mkdir()
    with ExitStack() as started:
        _lives(run, home, started)


BENCHMARK = Benchmark(
    "how long 100 consumers of 4,000 partitions wait after Postgres is promoted", benchmark, add_arguments
)
