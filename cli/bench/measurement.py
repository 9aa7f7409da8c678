"""One run of one row on one target: what is written to --json, and the medians over the rounds.

Place: made by loads.py; report.py and plots.py show it. Pure.
Invariant: a figure that a target cannot give is None, never 0. Ratios compare runs of the same round, which follow
each other directly.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

MEGA, GIGA = 1e6, 1e9


class Measurement(msgspec.Struct, kw_only=True):
    """Throughput is of values, keys not counted; CPU is per 10^9 bytes of them."""

    row: str
    target: str
    round: int
    records: int
    seconds: float
    mb_per_s: float
    records_per_s: float
    produce_p50_ms: float | None = None
    produce_p99_ms: float | None = None
    end_to_end_p50_ms: float | None = None
    end_to_end_p99_ms: float | None = None
    cpu_seconds: dict[str, float] = {}
    cpu_s_per_gb: dict[str, float] = {}
    rig_cpu_s_per_gb: dict[str, float] = {}
    """CPU of the servers that the target uses and that are no part of it."""
    peak_mb: dict[str, float] = {}
    puts: int | None = None
    gets: int | None = None
    flushes: int | None = None
    commits: int | None = None
    extents: int | None = None
    read_back: int = 0
    """Records that were read afterwards, or at the same time, and checked; 0 where rows only read."""
    duplicates: int = 0
    disordered: int = 0


class Summary(msgspec.Struct, kw_only=True):
    """Medians over the rounds; `ratio` is the throughput over the first target's."""

    row: str
    target: str
    rounds: int
    ratio: float | None
    figures: dict[str, float | None]
    cpu_s_per_gb: dict[str, float]
    rig_cpu_s_per_gb: dict[str, float]
    peak_mb: dict[str, float]


FIGURES = (
    "mb_per_s",
    "records_per_s",
    "produce_p50_ms",
    "produce_p99_ms",
    "end_to_end_p50_ms",
    "end_to_end_p99_ms",
    "puts",
    "gets",
    "flushes",
    "commits",
    "extents",
)


def summarise(runs: Sequence[Measurement]) -> list[Summary]:
    """One per row and target, in the order of their first run; the first target is the one that others compare to."""
    keys = list(dict.fromkeys((run.row, run.target) for run in runs))
    first = runs[0].target if runs else ""
    return [
        _summary([run for run in runs if (run.row, run.target) == key], _rates(runs, key[0], first)) for key in keys
    ]


def _rates(runs: Iterable[Measurement], row: str, target: str) -> dict[int, float]:
    return {run.round: run.mb_per_s for run in runs if (run.row, run.target) == (row, target)}


def _summary(runs: Sequence[Measurement], baseline: dict[int, float]) -> Summary:
    ratios = [run.mb_per_s / rate for run in runs if (rate := baseline.get(run.round))]
    return Summary(
        row=runs[0].row,
        target=runs[0].target,
        rounds=len(runs),
        ratio=statistics.median(ratios) if ratios else None,
        figures={name: _median(getattr(run, name) for run in runs) for name in FIGURES},
        cpu_s_per_gb=_medians([run.cpu_s_per_gb for run in runs]),
        rig_cpu_s_per_gb=_medians([run.rig_cpu_s_per_gb for run in runs]),
        peak_mb=_medians([run.peak_mb for run in runs]),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _medians(each: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in each if name in one) for name in each[0]}
