"""What spans cost a Produce request: before there were any, off, with a sampler, and all of them.

`python -m load.bench_tracing [--before COMMIT] [--turns 5]`. Each variant is load/bench_request.py in a separate
process, the variants in turns; the least of all turns counts. `before` runs in a work tree of the commit before
agent/serve/tracing/. Spans go to an exporter that drops them, by the same queue and thread as in an agent; what the
thread uses is included.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from load.bench_request import bench
from load.machine_state import machine_state

ROOT = Path(__file__).resolve().parents[1]
LINE = re.compile(r"request +(\d+) KiB +taken +([\d.]+) us .*answered +([\d.]+) us")
SAMPLED = "0.01"
Cost = dict[int, float]
"""KiB of a request -> CPU microseconds for it."""


def main() -> None:
    """All variants; or, in a child, one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="COMMIT", help="of the code without tracing (found in the history)")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        _with_spans()
        return
    print(machine_state(), flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-before-") as place:
        before = args.before or _git("log", "--diff-filter=A", "--format=%h^", "--", "agent/tracing/__init__.py")
        _git("worktree", "add", "--detach", place, before)
        try:
            _compare(Path(place), args.turns)
        finally:
            _git("worktree", "remove", "--force", place)


def _compare(before: Path, turns: int) -> None:
    own, spans = ["load.bench_request"], ["load.bench_tracing", "--child"]
    variants: dict[str, tuple[Path, Sequence[str], dict[str, str]]] = {
        "before": (before, own, {}),
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
        figures = "  ".join(
            f"{kib:3} KiB {cost:6.1f} us {cost / least['before'][kib]:6.3f}" for kib, cost in costs.items()
        )
        print(f"{name:10}  {figures}", flush=True)


def _run(root: Path, words: Sequence[str], environment: dict[str, str]) -> Cost:
    own = os.environ | environment | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, "-m", *words]
    output = subprocess.run(command, cwd=root, env=own, capture_output=True, text=True, check=True).stdout
    return {int(kib): float(taken) + float(answered) for kib, taken, answered in LINE.findall(output)}


def _with_spans() -> None:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    from headrace.cli.process.tracing import tracing_of
    from headrace.storage.clock import SystemClock

    class Dropped(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Dropped()))
    for kib in (1, 16, 64):
        asyncio.run(bench(kib * 1024, tracing_of(provider, SystemClock()).produce))
    provider.shutdown()


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
