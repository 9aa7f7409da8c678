"""What a share group costs next to an ordinary one: `python -m load share_groups`.

One agent, a hundred Java consumers of one group, a producer of 10,000 records of 200 bytes a second. Printed for a
consumer group of KIP-848 and for a share group (each record acquired, and its acceptance stored): CPU of the agent and
of Postgres while the producer runs, in cores, and how many records came. All of it includes the produce path. Run it
while no other process starts a Postgres.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

from load.dev_server import DevServer
from load.harness import Benchmark, BenchmarkRun
from tests.tools import JAVA_LIBRARIES

SOURCE = Path(__file__).parents[1] / "workloads" / "ShareLoad.java"
_TICKS = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> tuple[int, float, float, int]:
    """(parent, its CPU seconds, those of children that ended, ticks from the boot to its start)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own, ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return int(fields[1]), own / _TICKS, ended / _TICKS, int(fields[19])


def _postgres_seconds(since: int) -> float:
    """CPU of the Postgres that was started after so many ticks."""
    stats = {}
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdecimal() and (each / "comm").read_text().strip() == "postgres":
                stats[int(each.name)] = _stat(int(each.name))
        except OSError:
            continue  # it ended meanwhile
    servers = {pid for pid, (parent, _, _, started) in stats.items() if parent not in stats and started > since}
    own = sum(stats[pid][1] + stats[pid][2] for pid in servers)
    return own + sum(seconds for parent, seconds, _, _ in stats.values() if parent in servers)


def _measure(run: BenchmarkRun, kind: str, count: int, rate: int, seconds: int, partitions: int) -> None:
    since = int(float(Path("/proc/uptime").read_text().split()[0]) * _TICKS)
    with tempfile.TemporaryDirectory() as place, DevServer(Path(place)) as server:
        (agent,) = server.agents
        words = [server.bootstrap, kind, *map(str, (count, rate, seconds, partitions))]
        subprocess.run(["javac", "-d", place, "-cp", f"{JAVA_LIBRARIES}/*", str(SOURCE)], check=True)
        command = ["java", "-Xmx700m", "-cp", f"{place}:{JAVA_LIBRARIES}/*", SOURCE.stem, *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            began = sent = ended = 0.0, 0.0
            for line in client.stdout:
                what, _, number = line.strip().partition(" ")
                now = _stat(agent.pid)[1], _postgres_seconds(since)
                if what == "ready":
                    began = now
                elif what == "sent":
                    sent, ended = (float(number), 0.0), now
                elif what == "end":
                    cores = [(after - before) / seconds for before, after in zip(began, ended, strict=True)]
                    figures = {"cores of the agent": cores[0], "cores of Postgres": cores[1], "sent": sent[0]}
                    run.row(kind, figures | {"received": int(number)})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--consumers", type=int, default=100)
    parser.add_argument("--rate", type=int, default=10_000, help="records per second")
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)


def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    for _ in range(args.rounds):
        for kind in ("consumer", "share"):
            _measure(run, kind, args.consumers, args.rate, args.seconds, args.partitions)


BENCHMARK = Benchmark("a share group next to a consumer group, with 100 Java consumers", benchmark, add_arguments)
