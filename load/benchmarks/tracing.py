"""What spans cost a Produce request: before there were any, off, with a sampler, and all of them.

`python -m load tracing [--before COMMIT] [--turns 5]`. Each variant is load/benchmarks/request.py in a separate
process, the variants in turns; the least of all turns counts. `before` runs in a work tree of the commit before
agent/serve/tracing/. Spans go to an exporter that drops them, by the same queue and thread as in an agent; what the
thread uses is included.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from load.harness import Benchmark, BenchmarkRun

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"request +(\d+) KiB +taken +([\d.]+) us .*answered +([\d.]+) us")
SAMPLED = "0.01"
Cost = dict[int, float]
"""KiB of a request -> CPU microseconds for it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--before", metavar="COMMIT", help="of the code without tracing (found in the history)")
    parser.add_argument("--turns", type=int, default=5)


def benchmark(run: BenchmarkRun) -> None:
    place = run.place / "before"
    before = run.args.before or _git("log", "--diff-filter=A", "--format=%h^", "--", "agent/tracing/__init__.py")
    _git("worktree", "add", "--detach", str(place), before)
    try:
        _compare(run, place, run.args.turns)
    finally:
        _git("worktree", "remove", "--force", str(place))


def _compare(run: BenchmarkRun, before: Path, turns: int) -> None:
    old, own = ["load.bench_request"], ["load.workloads.traced_requests"]
    spans = [*own, "spans"]
    variants: dict[str, tuple[Path, Sequence[str], dict[str, str]]] = {
        "before": (before, old, {}),
        "off": (ROOT, own, {}),
        f"ratio {SAMPLED}": (ROOT, spans, {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": SAMPLED}),
        "all": (ROOT, spans, {"OTEL_TRACES_SAMPLER": "always_on"}),
    }
    least: dict[str, Cost] = {name: {} for name in variants}
    for _ in range(turns):
        for name, (root, words, environment) in variants.items():
            for kib, cost in _run(root, words, environment).items():
                least[name][kib] = min(cost, least[name].get(kib, cost))
    for name, costs in least.items():
        for kib, cost in costs.items():
            run.row(f"{name}, {kib} KiB", {"us": cost, "of before": cost / least["before"][kib]})


def _run(root: Path, words: Sequence[str], environment: dict[str, str]) -> Cost:
    own = os.environ | environment | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, "-m", *words]
    output = subprocess.run(command, cwd=root, env=own, capture_output=True, text=True, check=True).stdout
    if found := LINE.findall(output):  # the commit before prints lines
        return {int(kib): float(taken) + float(answered) for kib, taken, answered in found}
    return {int(kib): float(cost) for kib, cost in json.loads(output).items()}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


BENCHMARK = Benchmark(
    "a Produce request with spans: before there were any, off, sampled, all", benchmark, add_arguments
)
