"""The harness of all benchmarks: it parses, starts what they measure on, and prints and keeps their rows.

Place: between load/__main__.py, which names the benchmarks, and load/benchmarks/. A benchmark is a module with a
`BENCHMARK`: one line about what it measures, its arguments, and a function that measures and passes each row to its
`BenchmarkRun`. A row is a name and figures by unit; a figure may have a goal, or be a ratio to a peer, with the peer's
name as its unit. A note is a line of text about the rows that follow.
Invariant: what a run starts ends with it. A row is printed at once, and JSON has the same figures, not rounded.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import NO_VALUES, migrate
from load.dev_server import DevServer
from load.machine_state import machine_state

NAME_WIDTH = 44
NO_GOALS: Mapping[str, float] = MappingProxyType({})

Figure = float | str


@dataclass
class BenchmarkRun:
    """One run of a benchmark. `place`: a new folder that the user of Postgres can pass through."""

    args: argparse.Namespace
    place: Path
    rows: list[dict[str, object]] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    """What did not hold: with any, the run has failed."""
    _noted: str = ""

    def row(self, name: str, figures: Mapping[str, Figure], goals: Mapping[str, float] = NO_GOALS) -> None:
        """Print and keep a row. `figures`: by unit, the benchmark's order; `goals`: of some of them."""
        told = (f"{shown(figure)} {unit}{_goal(figure, goals.get(unit))}" for unit, figure in figures.items())
        print(f"  {name:{NAME_WIDTH}}  " + "  ".join(told), flush=True)
        kept: dict[str, object] = {"name": name, "figures": dict(figures)}
        kept |= {"goals": dict(goals)} if goals else {}
        self.rows.append(kept | ({"under": self._noted} if self._noted else {}))

    def note(self, text: str) -> None:
        """Print a line about the rows that follow."""
        print(text, flush=True)
        self._noted = text.strip()

    def judge(self, what: str, *, holds: bool) -> None:
        """Print whether a promise holds; the run fails if it does not."""
        print(f"{'met' if holds else 'MISSED'}: {what}", flush=True)
        if not holds:
            self.missed.append(what)

    def folder(self, name: str) -> Path:
        """Return a new folder below `place`."""
        made = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.place))
        made.chmod(0o711)  # started by root, Postgres runs as another user and must get through
        return made

    @contextmanager
    def postgres(
        self, *, commit_shards: int = 8, values: Mapping[str, str] = NO_VALUES, **options: Any
    ) -> Iterator[str]:
        """Start another Postgres and migrate it; its address. `options`: those of EmbeddedPostgres."""
        with EmbeddedPostgres(self.folder("postgres"), **options) as url:
            migrate(url, commit_shards=commit_shards, values=values)
            yield url

    def dev_server(self, **options: Any) -> DevServer:
        """Return a `headrace dev`, with the options of DevServer; entering it starts it."""
        return DevServer(self.folder("dev") / "data", **options)


def shown(figure: Figure) -> str:
    """Return a figure for people: whole numbers in full, others with about three digits."""
    if isinstance(figure, str):
        return figure
    if isinstance(figure, int) or abs(figure) >= 1_000:
        return f"{figure:,.0f}"
    size = abs(figure)
    return f"{figure:.1f}" if size >= 100 else f"{figure:.2f}" if size >= 1 else f"{figure:.3g}"


def _goal(figure: Figure, goal: float | None) -> str:
    if goal is None or isinstance(figure, str):
        return ""
    return f" (goal {shown(goal)}, {figure / goal:.2f} of it)"


@dataclass(frozen=True)
class Benchmark:
    """`measures`: one line. `run`: what measures; `add_arguments`: declares its arguments, if it has any."""

    measures: str
    run: Callable[[BenchmarkRun], None] | Callable[[BenchmarkRun], Coroutine[Any, Any, None]]
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None


def parsed(benchmark: Benchmark, words: list[str], name: str = "NAME", text: str | None = None) -> argparse.Namespace:
    """Return the arguments of a benchmark; `json` is the harness' own."""
    parser = argparse.ArgumentParser(
        prog=f"python -m load {name}",
        description=text or benchmark.measures,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benchmark.add_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="add a line with all rows to this file")
    return parser.parse_args(words)


def measure(name: str, benchmark: Benchmark, args: argparse.Namespace) -> int:
    """Run a benchmark between two looks at the machine; 1 if something did not hold."""
    before = machine_state()
    print(f"== {name}: {benchmark.measures}; {before}", flush=True)
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True)
        run = BenchmarkRun(args, Path(stack.enter_context(folder)))
        run.place.chmod(0o711)
        measured = benchmark.run(run)
        if inspect.iscoroutine(measured):
            asyncio.run(measured)
    after = machine_state()
    print(after, flush=True)
    if args.json:
        asked = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        asked.pop("json")
        kept = {"benchmark": name, "arguments": asked, "before": before, "after": after}
        with args.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(kept | {"rows": run.rows, "missed": run.missed}) + "\n")
    return 1 if run.missed else 0
