"""`make test`: the checks, the tools and the tests of one run, side by side, and what each of them cost.

Place: above pytest. The plugins of tests/house/ do the rest: they wait for tools, print the progress, bound each test
and add up the CPU seconds.
Invariant: the tools of the run are decided before its first test (tests/tools/plan.py). The exit status is 0 only if
the checks and the tests passed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.seeds import NIGHTLY
from tests.tools import every_tool, write_plan
from tests.tools.__main__ import why_not_installable
from tests.tools.plan import VARIABLE, ToolPlan

ROOT = Path(__file__).resolve().parents[1]
WORKERS_ABOVE_CORES = 1
"""A test waits for a third of its time: for a lease to end, for a client's interval, for its servers. With one worker
for each core, cores have nothing to do meanwhile: two cores were used at 75 % by two workers, at 83 % by three."""
WORKERS_MAX = 8
"""More would only wait for the longest unit (tests/house/units.py), and each has a separate Postgres."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A process that has ended. `cpu_seconds`: with all processes that it waited for."""

    status: int
    cpu_seconds: float


class Part:
    """A process of the run."""

    def __init__(self, command: Sequence[str], output: Path | None = None, **environment: str) -> None:
        """`output` None: that of this process."""
        stream = None if output is None else output.open("wb")
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environment, stdout=stream, stderr=None if stream is None else stream
        )

    def end(self) -> None:
        """End it, if it still runs: this process is interrupted."""
        if self._process.returncode is None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()

    def finish(self) -> Finished:
        """Wait for its end."""
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return Finished(self._process.returncode, usage.ru_utime + usage.ru_stime)


def main() -> int:
    """Run what the arguments ask for; 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="PATH", help="these tests, without the checks")
    parser.add_argument("--fast", action="store_true", help="tests without a server, in less than a minute")
    parser.add_argument("--all", action="store_true", help="the slow tests, too: the nightly run")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs us behind it lets us ignore it
    folder = Path(tempfile.mkdtemp(prefix="headrace-run-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return _run(folder, chosen, stack)


def _run(folder: Path, chosen: argparse.Namespace, stack: ExitStack) -> int:
    started = time.monotonic()

    def begin(command: Sequence[str], output: Path | None = None) -> Part:
        part = Part(command, output, **environment)
        stack.callback(part.end)
        return part

    is_part = bool(chosen.only or chosen.fast)
    plan = _plan(folder / "plan", () if is_part else _installable(chosen.all))
    environment = {VARIABLE: str(plan.folder)} | ({NIGHTLY: "1"} if chosen.all else {})
    installer = None if is_part else begin([sys.executable, "-m", "tests.tools", str(plan.folder)])
    check_log = folder / "check.log"
    check = None if is_part else begin(["make", "--no-print-directory", "check"], check_log)
    tests = begin(_pytest(chosen)).finish()
    failed = tests.status != 0
    lines = [f"  tests      {tests.cpu_seconds:6.0f} CPU s"]
    if check is not None:
        checked = check.finish()
        failed |= checked.status != 0
        lines.append(f"  make check {checked.cpu_seconds:6.0f} CPU s  {'failed' if checked.status else 'passed'}")
        if checked.status:
            print(f"\nmake check failed:\n{check_log.read_text(encoding='utf-8', errors='replace')}")
    if installer is not None:
        lines.append(f"  tools      {installer.finish().cpu_seconds:6.0f} CPU s")
    print("\n".join([*lines, f"  {_minutes(time.monotonic() - started)} in all"]), flush=True)
    return int(failed)


def _installable(with_slow: bool) -> set[str]:
    """Return the tools that this run installs."""
    wanted = [tool for tool in every_tool().values() if with_slow or not tool.is_nightly]
    return {tool.name for tool in wanted if not tool.is_present and why_not_installable(tool) is None}


def _plan(folder: Path, installing: Collection[str]) -> ToolPlan:
    """Decide on the tools, and say what was decided."""
    plan = write_plan(folder, installing)
    present = [name for name in every_tool() if plan.has(name)]
    print(f"tools: {len(present)} are there: {', '.join(present)}")
    if installing:
        names = ", ".join(sorted(installing))
        print(f"tools: {len(installing)} are installed during the first tests (versitygw takes minutes, once): {names}")
    left_out = [tool for tool in every_tool().values() if plan.why_left_out(tool.name) and not tool.is_nightly]
    for tool in left_out:
        print(f"tools: left out: {tool.name}: {why_not_installable(tool) or tool.enable}")
    sys.stdout.flush()
    return plan


def _pytest(chosen: argparse.Namespace) -> list[str]:
    marks = "" if chosen.all else "not slow and fast" if chosen.fast else "not slow"
    command = [sys.executable, "-m", "pytest", "-n", str(workers()), "--dist", "loadgroup", "--no-loadscope-reorder"]
    return [*command, "-m", marks, *(chosen.only or ())]


def workers() -> int:
    """Return how many processes run tests, by the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores + WORKERS_ABOVE_CORES, WORKERS_MAX)


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"


if __name__ == "__main__":
    sys.exit(main())
