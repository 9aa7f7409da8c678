"""What agents cost while nothing happens: `python -m load idle [--agents 3] [--seconds 60]`.

`headrace dev` without clients. Printed: the CPU of each agent, of Postgres, transactions per second as Postgres counts
them, and the calls that the agents made, by operation, from their /metrics.
Invariant: the one connection that counts is open all the time; what it asks is taken off.
"""

from __future__ import annotations

import argparse
import os
import re
import time
import urllib.request
from collections import Counter
from pathlib import Path

import psycopg

from load.dev_server import AgentAddress, DevServer
from load.harness import Benchmark, BenchmarkRun

SETTLE_SECONDS = 30.0
"""After the start: schedules, first snapshots and first plans are made."""
SHOWN = 15
GOAL_CORE_SHARE, GOAL_TRANSACTIONS = 0.005, 10.0
_CALLS = re.compile(r'^headrace_metastore_call_seconds_count\{operation="(\w+)"\} (\S+)$', re.MULTILINE)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _calls(agents: list[AgentAddress]) -> Counter[str]:
    found: Counter[str] = Counter()
    for agent in agents:
        with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=60) as response:
            found.update({name: int(float(count)) for name, count in _CALLS.findall(response.read().decode())})
    return found


def _transactions(connection: psycopg.Connection[tuple[int]]) -> int:
    """Also those of this connection: one by each call."""
    row = connection.execute(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return row[0]


def _measure(run: BenchmarkRun, server: DevServer, seconds: float) -> None:
    with psycopg.connect(server.metastore_url, autocommit=True) as connection:
        time.sleep(SETTLE_SECONDS)
        pids, calls = [agent.pid for agent in server.agents], _calls(server.agents)
        used, transactions, began = [_cpu_seconds(pid) for pid in pids], _transactions(connection), time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - began
        done = _transactions(connection) - transactions - 1
        spent = [_cpu_seconds(pid) - before for pid, before in zip(pids, used, strict=True)]
        made = _calls(server.agents) - calls
    run.note(f"{len(pids)} agents, {passed:.0f} s")
    for number, share in enumerate(spent, 1):
        run.row(f"agent {number}", {"of a core": share / passed}, {"of a core": GOAL_CORE_SHARE})
    goal = {"transactions/s": GOAL_TRANSACTIONS}  # for three agents
    run.row("Postgres", {"transactions/s": done / passed}, goal)
    for name, count in made.most_common(SHOWN):
        run.row(name, {"calls/s of all agents": count / passed})
    others = made.total() - sum(count for _, count in made.most_common(SHOWN))
    run.row("others", {"calls/s of all agents": others / passed})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60)


def benchmark(run: BenchmarkRun) -> None:
    with run.dev_server(agents=run.args.agents) as server:
        _measure(run, server, run.args.seconds)


BENCHMARK = Benchmark("CPU and transactions of three agents while nothing happens", benchmark, add_arguments)
