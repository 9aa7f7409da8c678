"""Benchmarks by name: `python -m load [NAME ...] [ARGUMENTS]`, or `make bench ROWS="commit codec"`.

Without a name, those of BENCH run one after another, as with several names: each in a separate process, without
arguments but `--json FILE`. One name takes its benchmark's arguments: `python -m load commit --seconds 1`; `--help`
shows them. `python -m load --list` names all benchmarks.
Figures are of the machine that runs them; what to compare are the ratios within one run.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

from load.harness import Benchmark, measure, parsed

NAMES = sorted(path.stem for path in (Path(__file__).parent / "benchmarks").glob("[a-z]*.py"))
BENCH = (
    "codec", "store", "copies", "commit", "ceiling", "compaction", "compaction_hour", "purge_duplicates", "life",
    "new_life", "metadata", "turns", "groups", "request", "tracing", "agent", "committers", "processes", "memory",
    "start", "idle", "isolation",
)  # fmt: skip
"""Need no other program, and take minutes at most."""


def main(words: list[str]) -> int:
    """Run what is named; 1 if one failed, 2 for a name that is none."""
    if words == ["--list"]:
        for name in NAMES:
            print(f"{name:22} {_load(name)[0].measures}")
        return 0
    if words in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    count = next((n for n, word in enumerate(words) if word not in NAMES), len(words))
    names, rest = words[:count], words[count:]
    if len(names) == 1:
        benchmark, text = _load(names[0])
        return measure(names[0], benchmark, parsed(benchmark, rest, names[0], text))
    if rest and rest[0] != "--json":
        print(f"no benchmark is called {rest[0]}: python -m load --list", file=sys.stderr)
        return 2
    return _all(names or list(BENCH), rest)


def _load(name: str) -> tuple[Benchmark, str | None]:
    module = importlib.import_module(f"load.benchmarks.{name}")
    benchmark: Benchmark = module.BENCHMARK
    return benchmark, module.__doc__


def _all(names: list[str], rest: list[str]) -> int:
    failed = []
    for name in names:
        if subprocess.run([sys.executable, "-m", "load", name, *rest], check=False).returncode:
            failed.append(name)
        print(flush=True)
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
