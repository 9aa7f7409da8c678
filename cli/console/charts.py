"""Charts as SVG paths: numbers to coordinates. Pure.

Place: under the page of charts; the template charts_live.html draws what is here.
Invariant: a gap in the points is a gap in the line. The picture is WIDTH by HEIGHT units and is stretched to its box,
so all words are outside of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 600.0, 120.0
GAP_SECONDS = 30.0
"""Neighbours with more time between them are not joined."""


class Chart(NamedTuple):
    """`line` and `area` are SVG path data; `top` is the value at the upper edge, `now` and `most` of the points."""

    title: str
    unit: str
    line: str
    area: str
    top: float
    now: float | None
    most: float | None


def draw(
    title: str, unit: str, points: Sequence[tuple[int, float | None]], start_ms: int, end_ms: int, *, step: float = 10.0
) -> Chart:
    """Draw points of (time in ms, value) from start to end. `step` 10: the upper edge is 1, 2 or 5 times a power of
    10.
    """
    known = [(at, value) for at, value in points if value is not None and start_ms <= at <= end_ms]
    top = _nice(max((value for _, value in known), default=0.0), step)
    line, area = [], []
    for run in _runs(known):
        places = [
            ((at - start_ms) / max(end_ms - start_ms, 1) * WIDTH, HEIGHT - value / top * HEIGHT) for at, value in run
        ]
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        line.append(f"M{path}")
        area.append(f"M{places[0][0]:.1f} {HEIGHT:.1f} L{path} L{places[-1][0]:.1f} {HEIGHT:.1f} Z")
    values = [value for _, value in known]
    return Chart(
        title, unit, " ".join(line), " ".join(area), top, values[-1] if values else None, max(values, default=None)
    )


def _runs(known: Sequence[tuple[int, float]]) -> list[list[tuple[int, float]]]:
    runs: list[list[tuple[int, float]]] = []
    for at, value in known:
        if runs and at - runs[-1][-1][0] <= GAP_SECONDS * 1000:
            runs[-1].append((at, value))
        else:
            runs.append([(at, value)])
    return runs


def _nice(value: float, step: float) -> float:
    """The smallest of 1, 2, 5 times a power of `step` that is not below the value; at least 1. For bytes `step` is
    1024, and the multiples are powers of 2."""
    if value <= 1:
        return 1.0
    power = step ** math.floor(math.log(value, step))
    multiples = (1, 2, 5, 10) if step == 10.0 else tuple(2**n for n in range(11))
    return next((m * power for m in multiples if m * power >= value), step * power)
