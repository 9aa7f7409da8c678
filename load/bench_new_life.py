"""How long readers wait after Postgres is promoted: `python -m load.bench_new_life`.

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
import tempfile
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
from load.machine_state import machine_state
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


def measure(name: str, agents: list[AgentChild], readers: AssignedReaders, began: float, before: AgentCost) -> None:
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
    print(
        f"{name:16}  acknowledged {sending.acknowledged_at - began:6.2f} s  first read {first:6.2f} s"
        f"  all read {read_at - began:6.2f} s  agents' CPU {cpu:6.2f} s  look-ups {look_ups:5.0f}"
        f"  checks of positions {epochs:5.0f}",
        flush=True,
    )


def until(readers: AssignedReaders, is_over: Callable[[], bool]) -> None:
    """Let the readers read until it is; RuntimeError when it takes too long."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not is_over():
        readers.read()
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"readers do not finish: {readers.describe()}")
        time.sleep(POLL_SECONDS)


def run(arguments: argparse.Namespace, home: Path, started: ExitStack) -> None:
    """Everything, in the order of the module's text."""
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
    measure("first", agents, readers, time.monotonic(), cost_of(agents))
    idle_from, before = time.monotonic(), cost_of(agents)
    until(readers, lambda: time.monotonic() > idle_from + arguments.idle_seconds)
    idle = cost_of(agents)
    print(
        f"idle              {idle.cpu_seconds - before.cpu_seconds:.2f} s of agents' CPU in {arguments.idle_seconds} s"
    )
    measure("before", agents, readers, time.monotonic(), idle)
    before = cost_of(agents)
    servers.crash("primary")
    crashed = time.monotonic()
    servers.promote("standby")
    print(f"promoted          {time.monotonic() - crashed:.2f} s after the crash")
    measure("after promotion", agents, readers, time.monotonic(), before)
    measure("again", agents, readers, time.monotonic(), cost_of(agents))
    print(f"errors that consumers reported: {readers.errors or 'none'}")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=4_000)
    parser.add_argument("--consumers", type=int, default=100)
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--idle-seconds", type=int, default=5, help="how long the CPU without load is measured")
    arguments = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it has a line for each partition's retry
    print(machine_state(), flush=True)
    print(f"{arguments.partitions} partitions, {arguments.consumers} consumers, {arguments.agents} agents", flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-new-life-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        home.chmod(0o711)
        (home / "postgres").mkdir()
        with ExitStack() as started:
            run(arguments, home, started)
    print(machine_state(), "at the end")


if __name__ == "__main__":
    main()
