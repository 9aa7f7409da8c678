"""What the bench prints and writes: a table of medians, and a JSON document with every run.

Place: after run.py. Invariant: the table is made of the summaries that the JSON document contains.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.table import Table

from headrace.cli.bench.measurement import Summary, summarise
from headrace.cli.bench.rows import Row
from headrace.cli.bench.run import BenchPlan, Outcome, WarmUp

NONE = "-"
COLUMNS = (
    "MB/s",
    "ratio",
    "records/s",
    "produce ms\np50 / p99",
    "end to end ms\np50 / p99",
    "CPU s/GB",
    "peak MB",
    "PUTs",
    "GETs",
    "flushes",
    "commits",
    "extents",
)


def number(value: float | None) -> str:
    """Three digits, as they are read: 0.712, 8.4, 141, 12,300."""
    if value is None:
        return NONE
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def cells(summary: Summary) -> list[str]:
    """The figures of one line, in the order of COLUMNS."""
    figure = summary.figures

    def pair(name: str) -> str:
        low, high = figure[f"{name}_p50_ms"], figure[f"{name}_p99_ms"]
        return NONE if low is None and high is None else f"{number(low)} / {number(high)}"

    return [
        number(figure["mb_per_s"]),
        NONE if summary.ratio is None else f"{summary.ratio:.2f}",
        number(figure["records_per_s"]),
        pair("produce"),
        pair("end_to_end"),
        _sum(summary.cpu_s_per_gb),
        _sum(summary.peak_mb),
        *(number(figure[name]) for name in ("puts", "gets", "flushes", "commits", "extents")),
    ]


def make_table(summaries: Sequence[Summary], rows: Sequence[Row]) -> Table:
    """A section per row, a line per target; CPU of a rig has a column if a target has one."""
    titles = {row.name: row.title for row in rows}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("row")
    table.add_column("target")
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    with_rig = any(summary.rig_cpu_s_per_gb for summary in summaries)
    if with_rig:
        table.add_column("rig's CPU s/GB", justify="right", no_wrap=True)
    before = ""
    for summary in summaries:
        title = f"{summary.row}: {titles[summary.row]}" if summary.row != before else ""
        rig = [_sum(summary.rig_cpu_s_per_gb)] if with_rig else []
        table.add_row(title, summary.target, *cells(summary), *rig)
        before = summary.row
    return table


def legend(summaries: Sequence[Summary]) -> list[str]:
    """What the sums in the columns CPU and peak consist of, and those of the rig's CPU."""
    processes = {summary.target: " + ".join(summary.cpu_s_per_gb) for summary in summaries}
    rigs = {summary.target: " + ".join(summary.rig_cpu_s_per_gb) for summary in summaries}
    return [
        *(f"CPU and peak memory of {target}: {kinds}" for target, kinds in processes.items() if kinds),
        *(f"rig's CPU of {target}, not counted as the target's: {kinds}" for target, kinds in rigs.items() if kinds),
    ]


def warm_up_line(target: str, done: WarmUp) -> str:
    """How a target was warmed up."""
    rates = ", ".join(number(rate) for rate in done.mb_per_s)
    judged = {True: "steady", False: "not steady yet", None: "one window, not judged"}[done.steady]
    return f"warm-up of {target}: {judged} after {number(done.seconds)} s: {rates} MB/s"


def document(plan: BenchPlan, outcome: Outcome) -> dict[str, Any]:
    """Return the document for --json."""
    return {
        "machine": machine(),
        "rounds": plan.rounds,
        "seconds": plan.bounds.seconds,
        "targets": [
            {
                "target": spec.name,
                "kind": spec.kind,
                "settings": spec.settings,
                "version": outcome.versions[spec.name],
                "warm_up": msgspec.to_builtins(outcome.warm_ups[spec.name]),
            }
            for spec in plan.specs
        ],
        "rows": [{"row": row.name, "title": row.title} for row in plan.rows],
        "summary": msgspec.to_builtins(summarise(outcome.runs)),
        "runs": msgspec.to_builtins(outcome.runs),
        "failures": outcome.failures,
    }


def machine() -> dict[str, Any]:
    """The state of the machine: load averages over 1, 5 and 15 minutes include other work."""
    return {
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def _sum(parts: Mapping[str, float]) -> str:
    return " + ".join(number(value) for value in parts.values()) or NONE
