"""--plots: bars of throughput, latency, CPU and memory, a PNG file each.

Place: after report.py; imports matplotlib, which only the extra `bench` brings.
Invariant: the plots show the medians of the table; a figure that a target does not have is no bar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from headrace.cli.bench.measurement import Summary
from headrace.cli.bench.report import number

WIDTH_INCHES, BAR_INCHES, GAP_INCHES, EDGE_INCHES = 9.0, 0.2, 0.15, 1.2
LABEL_POINTS = 7
DOTS_PER_INCH = 120


class Plot(NamedTuple):
    """One file."""

    file: str
    title: str
    value: Callable[[Summary], float | None]
    logarithmic: bool = True


def _figure(name: str) -> Callable[[Summary], float | None]:
    return lambda summary: summary.figures[name]


def _total(parts: Mapping[str, float]) -> float | None:
    return sum(parts.values()) if parts else None


PLOTS = (
    Plot("throughput.png", "throughput, MB/s", _figure("mb_per_s")),
    Plot("produce_p50.png", "produce latency p50, ms", _figure("produce_p50_ms")),
    Plot("produce_p99.png", "produce latency p99, ms", _figure("produce_p99_ms")),
    Plot("end_to_end_p50.png", "end-to-end latency p50, ms", _figure("end_to_end_p50_ms")),
    Plot("end_to_end_p99.png", "end-to-end latency p99, ms", _figure("end_to_end_p99_ms")),
    Plot("cpu.png", "CPU seconds per GB, all processes of a target", lambda one: _total(one.cpu_s_per_gb)),
    Plot("memory.png", "peak memory, MB, all processes of a target", lambda one: _total(one.peak_mb), False),
)


def draw_plots(summaries: Sequence[Summary], folder: Path) -> list[Path]:
    """Write the plots that have a bar; the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for plot in PLOTS:
        bars = {(one.row, one.target): value for one in summaries if (value := plot.value(one))}
        if bars:
            figure = _draw(plot, bars, list(dict.fromkeys(one.target for one in summaries)))
            figure.savefig(folder / plot.file, dpi=DOTS_PER_INCH)
            drawn.append(folder / plot.file)
    return drawn


def _draw(plot: Plot, bars: Mapping[tuple[str, str], float], targets: Sequence[str]) -> Figure:
    """Rows from top to bottom, in each a bar per target, with its value at its end."""
    rows = list(dict.fromkeys(row for row, _ in bars))
    step = len(targets) * BAR_INCHES + GAP_INCHES
    figure = Figure(figsize=(WIDTH_INCHES, EDGE_INCHES + len(rows) * step), layout="constrained")
    axes = figure.subplots()
    for index, target in enumerate(targets):
        mine = {place: bars[row, target] for place, row in enumerate(rows) if (row, target) in bars}
        places = [place * step + index * BAR_INCHES for place in mine]
        drawn = axes.barh(places, list(mine.values()), height=BAR_INCHES, label=target)
        axes.bar_label(drawn, [number(value) for value in mine.values()], padding=2, fontsize=LABEL_POINTS)
    axes.set_yticks([place * step + (len(targets) - 1) * BAR_INCHES / 2 for place in range(len(rows))], rows)
    axes.invert_yaxis()
    if plot.logarithmic:
        axes.set_xscale("log")
    axes.margins(x=0.12, y=0.02)
    axes.set_title(plot.title)
    if len(targets) > 1:
        axes.legend(loc="best", fontsize=LABEL_POINTS)
    return figure
