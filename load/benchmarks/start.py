"""How long a start takes: `python -m load start [--rounds 5] [--partitions 100000 --registered 1000]`.

Three starts per round, each timed from the start of the process to its ready line, with the CPU that the machine used
by then: `headrace dev` from nothing, again on the same data, and a further agent that joins it. Medians at the end.
Invariant: no start shares a process with another one; a further agent is stopped before the next round begins. The code
is compiled before, as that of an installation is. With `--partitions` the data has so many, in topics of 12, and with
`--registered` so many agents that hold a lease: the second and third start find them in the metadata log.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import headrace
from headrace.config.settings import Settings
from headrace.metastore.api.agents import AgentRegistration
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.postgres.installation import remove_data_dir
from headrace.metastore.postgres.store import PostgresMetastore
from load.dev_server import DevServer
from load.harness import Benchmark, BenchmarkRun

GOALS_SECONDS = {"from nothing": 3.0, "again, with data": 2.0, "a further agent": 1.0}
STOP_SECONDS = 60
TOPIC_PARTITIONS, TOPICS_AT_ONCE = 12, 200
LEASE_MS = 24 * 3_600_000


class Start(NamedTuple):
    """Seconds from the start to the ready line: of the clock, and of CPU by all processes on this machine."""

    wall: float
    cpu: float


@contextmanager
def _timed(found: list[Start]) -> Iterator[None]:
    began, used = time.monotonic(), _busy_seconds()
    yield
    found.append(Start(time.monotonic() - began, _busy_seconds() - used))


def _busy_seconds() -> float:
    """User and system time of the whole machine: Postgres' processes are not children of this one."""
    user, nice, system, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def _compile_code() -> None:
    for folder in Path(headrace.__file__).parent.iterdir():
        if folder.is_dir() and not compileall.compile_dir(folder, quiet=1):
            raise RuntimeError(f"cannot compile: {folder}")


async def _fill(url: str, partitions: int, agents: int) -> None:
    """Create topics, and register agents that live elsewhere."""
    store = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
    for first in range(0, partitions // TOPIC_PARTITIONS, TOPICS_AT_ONCE):
        last = min(first + TOPICS_AT_ONCE, partitions // TOPIC_PARTITIONS)
        topics = [NewTopic(f"topic-{n:06}", uuid.uuid4(), TOPIC_PARTITIONS, {}) for n in range(first, last)]
        while not await store.topics.create_topics(await store.cluster.metadata_head(), topics):
            pass
    for number in range(agents):
        zone = "abc"[number % 3]
        agent = await store.cluster.register_agent(
            AgentRegistration(10_000 + number, uuid.uuid4(), "192.0.2.1", 9092, zone)
        )
        head = await store.cluster.metadata_head()
        await store.cluster.heartbeat(*agent, metadata_offset=head, want_fence=False, session_timeout_ms=LEASE_MS)
    await store.close()


def _round(found: dict[str, list[Start]], partitions: int, agents: int) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as path:
        data_dir = Path(path)
        for name in ("from nothing", "again, with data"):
            server = DevServer(data_dir, keep_data=True)
            with _timed(found[name]):
                server.__enter__()
            try:
                if name != "from nothing":
                    _join(server, found["a further agent"])
                elif partitions or agents:
                    asyncio.run(_fill(server.metastore_url, partitions, agents))
            finally:
                server.__exit__(None, None, None)
        remove_data_dir(data_dir / "postgres")


def _join(server: DevServer, found: list[Start]) -> None:
    flags = ["--listeners", "CLIENT://127.0.0.1:0", "--http-port", "0", "--log-level", "warning"]
    command = [sys.executable, "-m", "headrace.cli.main", "agent", *flags]
    command += ["--metastore-url", server.metastore_url, "--bucket", server.bucket]
    with _timed(found):
        agent = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        assert agent.stdout is not None
        ready = next((line for line in agent.stdout if line.startswith("ready ")), None)
    agent.terminate()
    agent.wait(STOP_SECONDS)
    agent.stdout.close()
    if ready is None:
        raise RuntimeError(f"the agent ended with status {agent.returncode} before it was ready")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=0)
    parser.add_argument("--registered", type=int, default=0)


def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    _compile_code()
    found: dict[str, list[Start]] = {name: [] for name in GOALS_SECONDS}
    for number in range(args.rounds):
        _round(found, args.partitions, args.registered)
        run.row(
            f"round {number + 1} of {args.rounds}", {f"s {name}": starts[-1].wall for name, starts in found.items()}
        )
    run.note("from exec to the ready line")
    for name, starts in found.items():
        wall, cpu = [start.wall for start in starts], statistics.median(start.cpu for start in starts)
        figures = {"s median": statistics.median(wall), "s least": min(wall), "CPU s": cpu}
        run.row(name, figures, {"s median": GOALS_SECONDS[name]})


BENCHMARK = Benchmark("starts: from nothing, with data, a further agent", benchmark, add_arguments)
