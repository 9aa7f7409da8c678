"""Progress of a bench on stderr: a bar if that is a terminal, and one line per run either way.

Place: called by run.py.
Invariant: stdout is left to the result.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from headrace.cli.bench.measurement import Measurement
from headrace.cli.bench.report import number


class BenchProgress:
    """A Watcher of run.py; use it with `with`."""

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False)
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("start", total=None)

    def __enter__(self) -> BenchProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, label: str, done: int, total: int, result: Measurement | str | None) -> None:
        self._bar.update(self._task, description=label, completed=done, total=total)
        if isinstance(result, str):
            self._bar.console.print(f"[{done}/{total}] {label}: failed: {result}", markup=False, soft_wrap=True)
        elif result is not None:
            self._bar.console.print(f"[{done}/{total}] {label}: {line(result)}", markup=False, soft_wrap=True)


def line(run: Measurement) -> str:
    """One run in a few words."""
    parts = [f"{number(run.mb_per_s)} MB/s", f"{number(run.records_per_s)} records/s"]
    for name, p50, p99 in (
        ("produce", run.produce_p50_ms, run.produce_p99_ms),
        ("end to end", run.end_to_end_p50_ms, run.end_to_end_p99_ms),
    ):
        if p50 is not None:
            parts.append(f"{name} {number(p50)} / {number(p99)} ms")
    parts += [f"{name} {number(spent)} s/GB" for name, spent in run.cpu_s_per_gb.items()]
    parts += [f"rig's {name} {number(spent)} s/GB" for name, spent in run.rig_cpu_s_per_gb.items()]
    return ", ".join(parts)
