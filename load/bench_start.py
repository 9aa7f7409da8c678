"""How long a start takes: `python -m load.bench_start [--rounds 5]`.

Three starts per round, each timed from the start of the process to its ready line, with the CPU that the machine used
by then: `headrace dev` from nothing, again on the same data, and a further agent that joins it. Medians at the end.
Invariant: no start shares a process with another one; a further agent is stopped before the next round begins. The code
is compiled before, as that of an installation is.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import headrace
from headrace.metastore.postgres.installation import remove_data_dir
from load.dev_server import DevServer
from load.machine_state import machine_state

GOALS_SECONDS = {"from nothing": 3.0, "again, with data": 2.0, "a further agent": 1.0}
STOP_SECONDS = 60


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


def _round(found: dict[str, list[Start]]) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as path:
        data_dir = Path(path)
        for name in ("from nothing", "again, with data"):
            server = DevServer(data_dir, keep_data=True)
            with _timed(found[name]):
                server.__enter__()
            try:
                if name != "from nothing":
                    _join(server, found["a further agent"])
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


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m load.bench_start", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(machine_state())
    _compile_code()
    found: dict[str, list[Start]] = {name: [] for name in GOALS_SECONDS}
    for number in range(args.rounds):
        _round(found)
        newest = "  ".join(f"{name} {starts[-1].wall:.2f} s" for name, starts in found.items())
        print(f"  round {number + 1} of {args.rounds}: {newest}", flush=True)
    print("\nstart, from exec to the ready line   median s   least s   CPU s   goal s")
    for name, starts in found.items():
        wall, cpu = [start.wall for start in starts], statistics.median(start.cpu for start in starts)
        print(f"{name:35} {statistics.median(wall):9.2f} {min(wall):9.2f} {cpu:7.2f} {GOALS_SECONDS[name]:8.1f}")
    print(machine_state())


if __name__ == "__main__":
    main()
