"""`headrace cost --plot FILE`: monthly cost by written bytes, for each system, as an SVG picture.

Place: after model.py; command.py writes the text to a file. No library: a line chart on two logarithmic axes is short.
Invariant: the same workload, constants and prices give the same text. The chart has light and dark colours, and says in
words what its lines are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape

from headrace.cli.cost.data import Constants, Prices
from headrace.cli.cost.model import Workload, bills

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 80, 600, 50, 380
"""Edges of the area of the lines; the names of the lines are right of it."""
DECADES = 4
STEPS_PER_DECADE = 8
LABEL_HEIGHT = 18
COLOURS = ("#0b6e99", "#c2571a", "#5a7d2a", "#7a4fa3")
STYLE = """\
text { font: 13px sans-serif; fill: #222 } .grid { stroke: #ddd } .line { fill: none; stroke-width: 2.5 }
.here { stroke: #222; stroke-dasharray: 4 4 } .title { font-weight: bold }
@media (prefers-color-scheme: dark) {
  svg { background: #161616 } text { fill: #ddd } .grid { stroke: #333 } .here { stroke: #ddd }
}
"""
Point = tuple[float, float]


class LogAxis:
    """Logarithmic axis: maps a range of values to one of pixels."""

    def __init__(self, values: tuple[float, float], pixels: tuple[float, float]) -> None:
        self.low, self.high = map(math.log10, values)
        self._first, self._last = pixels

    def place(self, value: float) -> float:
        """The pixel of a value."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self._first + share * (self._last - self._first)

    def decades(self) -> list[float]:
        """The powers of ten within it."""
        return [10.0**power for power in range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)]


def picture(workload: Workload, measured: Constants, prices: Prices) -> str:
    """The SVG text: two decades around the workload's rate."""
    middle = round(math.log10(workload.write_mib_s))
    powers = [middle - DECADES / 2 + step / STEPS_PER_DECADE for step in range(DECADES * STEPS_PER_DECADE + 1)]
    rates = [10.0**power for power in powers]
    found = [bills(replace(workload, write_mib_s=rate), measured, prices) for rate in rates]
    totals = [bill.total for at_rate in found for bill in at_rate]
    across = LogAxis((rates[0], rates[-1]), (LEFT, RIGHT))
    least, most = math.floor(math.log10(min(totals))), math.ceil(math.log10(max(totals)))
    up = LogAxis((10.0**least, 10.0**most), (BOTTOM, TOP))
    lines = {
        name: [
            (across.place(rate), up.place(at_rate[number].total)) for rate, at_rate in zip(rates, found, strict=True)
        ]
        for number, name in enumerate(bill.name for bill in found[0])
    }
    title = (
        f"{prices.currency} per month, prices of {prices.read_on}: read {workload.fanout:g} times,"
        f" kept {workload.retention_days:g} days, batches of {workload.batch_kib:g} KiB"
    )
    parts = [*_grid(across, up, prices.currency), *_here(across, workload.write_mib_s), *_lines(lines)]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            _text(LEFT, 25, title, 'class="title"'),
            *parts,
            "</svg>\n",
        )
    )


def _grid(across: LogAxis, up: LogAxis, currency: str) -> Iterator[str]:
    for value in across.decades():
        x = across.place(value)
        yield _line((x, TOP), (x, BOTTOM), "grid")
        yield _text(x, BOTTOM + 20, f"{value:,g}", 'text-anchor="middle"')
    for value in up.decades():
        y = up.place(value)
        yield _line((LEFT, y), (RIGHT, y), "grid")
        yield _text(LEFT - 8, y + 4, f"{value:,.0f}", 'text-anchor="end"')
    yield _text((LEFT + RIGHT) / 2, BOTTOM + 45, "MiB written per second", 'text-anchor="middle"')
    yield _text(LEFT - 8, TOP - 10, currency, 'text-anchor="end"')


def _here(across: LogAxis, rate: float) -> Iterator[str]:
    x = across.place(rate)
    yield _line((x, TOP), (x, BOTTOM), "here")


def _lines(lines: dict[str, list[Point]]) -> Iterator[str]:
    ends = _apart([points[-1][1] for points in lines.values()])
    for (name, points), colour, end in zip(lines.items(), COLOURS, ends, strict=True):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline class="line" stroke="{colour}" points="{path}"/>'
        yield _text(RIGHT + 10, end + 4, name, f'style="fill: {colour}"')


def _apart(wanted: Sequence[float]) -> list[float]:
    """Places of labels from top to bottom, none on another."""
    placed = dict.fromkeys(range(len(wanted)), 0.0)
    last = -math.inf
    for number in sorted(placed, key=lambda number: wanted[number]):
        last = placed[number] = max(wanted[number], last + LABEL_HEIGHT)
    return list(placed.values())


def _line(start: Point, end: Point, kind: str) -> str:
    return f'<line class="{kind}" x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"/>'


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'
