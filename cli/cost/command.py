"""The command line of `headrace cost`: a table of needs, bills side by side with bars, a picture, or JSON.

Place: a subcommand of cli/main.py; model.py has the sums. It connects to nothing. `--plot FILE` draws monthly cost
by written bytes, for each system, as SVG. No library: a line chart on two logarithmic axes is short.
Invariant of the picture: the same workload, constants and prices give the same text. The chart has light and dark
colours, and says in words what its lines are.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from html import escape
from pathlib import Path

from rich.table import Table

from headrace.cli.cost.model import (
    CLOUDS,
    GB,
    Bill,
    Constants,
    Needs,
    Prices,
    Workload,
    bills,
    early_flush_bill,
    measured,
    needs,
    prices,
)
from headrace.cli.output import write
from headrace.cli.plain_console import PlainConsole
from headrace.storage.errors import InvalidError

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 80, 600, 50, 380
"""Edges of the area of the lines; the names of the lines are right of it."""
DECADES = 4
STEPS_PER_DECADE = 8
LABEL_HEIGHT = 18
COLOURS = ("#0b6e99", "#2aa7c9", "#c2571a", "#5a7d2a", "#7a4fa3")
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


DESCRIPTION = """\
What a workload needs of machines, bucket and Postgres, and what that costs in a month, next to Kafka in three zones,
the same Kafka with tiered storage (KIP-405), and a managed Kafka. Constants were measured (cli/cost/constants.toml
names each run), prices have a date and a source (cli/cost/prices*.toml has a file for each cloud). Right within a
factor of two: measure your own load before you decide.

  headrace cost --write-mib-s 100 --fanout 3 --retention-days 7
  headrace cost --write-mib-s 10 --fanout 3 --plot cost.svg
  headrace cost --write-mib-s 10 --batch-kib 4 --partitions 1000 --json
  headrace cost --write-mib-s 10 --fanout 3 --cloud azure
"""
BAR_WIDTH = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the workload, the prices and the output."""
    default = Workload(write_mib_s=1)
    parser.add_argument("--write-mib-s", type=_positive, required=True, metavar="N", help="bytes in, as sent")
    parser.add_argument(
        "--fanout", type=_not_negative, default=default.fanout, metavar="N", help="how often each record is read"
    )
    parser.add_argument(
        "--retention-days",
        type=_positive,
        default=default.retention_days,
        metavar="N",
        help="how long records are kept",
    )
    parser.add_argument(
        "--local-retention-hours",
        type=_not_negative,
        default=default.local_retention_hours,
        metavar="N",
        help="how long Kafka with tiered storage keeps records on its disks (24)",
    )
    parser.add_argument(
        "--batch-kib", type=_positive, default=default.batch_kib, metavar="N", help="producers' batches"
    )
    parser.add_argument("--partitions", type=int, default=default.partitions, metavar="N", help="that are written to")
    parser.add_argument(
        "--early-flushes",
        type=_not_negative,
        default=default.early_flushes_s,
        metavar="N",
        help="flush.early.per.second of the agents",
    )
    parser.add_argument(
        "--group-members",
        type=_members,
        default=default.group_members,
        metavar="N",
        help="members of all consumer groups, each of which commits offsets every 5 seconds",
    )
    parser.add_argument(
        "--low-latency",
        action="store_true",
        help="show the needs with low.latency.enable on all topics; the bills have both",
    )
    parser.add_argument(
        "--cloud",
        choices=CLOUDS,
        default="aws",
        help="the prices of this cloud: of requests, storage, machines and zones (aws)",
    )
    parser.add_argument("--prices", type=Path, metavar="FILE", help="prices other than those of the cloud's file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also write an SVG picture: cost by written bytes")
    parser.add_argument("--json", action="store_true", help="JSON for scripts")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print it; the exit status. InvalidError for prices that lack a value, or a plot that cannot be written."""
    workload = Workload(
        write_mib_s=args.write_mib_s,
        fanout=args.fanout,
        retention_days=args.retention_days,
        local_retention_hours=args.local_retention_hours,
        batch_kib=args.batch_kib,
        partitions=max(1, args.partitions),
        early_flushes_s=args.early_flushes,
        group_members=args.group_members,
        low_latency=args.low_latency,
    )
    constants, list_prices = measured(), prices(args.prices, args.cloud)
    need, found = needs(workload, constants), bills(workload, constants, list_prices)
    if args.plot:
        _write(args.plot, picture(workload, constants, list_prices))
    if args.json:
        write(json.dumps(_document(workload, need, found, list_prices), indent=1))
    else:
        _show(PlainConsole(), workload, need, found, list_prices)
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidError(f"cannot write: file={path} error={error.strerror}") from error


def _document(workload: Workload, need: Needs, found: Sequence[Bill], list_prices: Prices) -> dict[str, object]:
    return {
        "workload": asdict(workload),
        "needs": asdict(need),
        "currency": list_prices.currency,
        "prices_read_on": list_prices.read_on,
        "early_flushes_at_most": early_flush_bill(need, list_prices),
        "monthly": {bill.name: bill.parts | {"total": bill.total} for bill in found},
    }


HINT_SHARE = 0.95
"""A bill below this share of the other one is worth a hint."""


def low_latency_hint(workload: Workload, need: Needs, found: Sequence[Bill]) -> str:
    """Return what low.latency.enable would change, if it is off and worth it; else nothing. Pure."""
    without, with_it = (next(bill.total for bill in found if bill.name == name) for name in ("Headrace", "low latency"))
    if workload.low_latency or not need.puts_s or with_it > HINT_SHARE * without:
        return ""
    file_kib = workload.write_mib_s * 1024 / need.puts_s
    saved = f"{without - with_it:,.0f} of {without:,.0f}"
    return (
        f"files are about {file_kib:,.0f} KiB: low.latency.enable would save {saved}, and small requests wait"
        " for no PUT (docs/operate/LOW_LATENCY.md)"
    )


def _show(console: PlainConsole, workload: Workload, need: Needs, found: Sequence[Bill], list_prices: Prices) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("HEADRACE NEEDS")
    table.add_column("", justify="right")
    for name, value in _rows(need):
        table.add_row(name, value)
    console.print(table)
    console.print(f"\n{list_prices.currency} per month, prices of {list_prices.read_on}\n")
    parts = list(dict.fromkeys(part for bill in found for part in bill.parts))
    costs = Table(box=None, pad_edge=False, header_style="bold")
    costs.add_column("")
    for bill in found:
        costs.add_column(bill.name.upper(), justify="right")
    for part in parts:
        costs.add_row(part, *(f"{bill.parts[part]:,.0f}" if part in bill.parts else "-" for bill in found))
    costs.add_row("total", *(f"{bill.total:,.0f}" for bill in found), style="bold")
    console.print(costs)
    console.print(f"\nearly flushes: at most {early_flush_bill(need, list_prices):,.0f} of Headrace's requests\n")
    if hint := low_latency_hint(workload, need, found):
        console.print(f"{hint}\n")
    most = max(bill.total for bill in found)
    for bill in found:
        console.print(f"{bill.name:20} {bar(bill.total, most)} {bill.total:,.0f}")


def _rows(need: Needs) -> list[tuple[str, str]]:
    return [
        ("agents, one core each", f"{need.agents}"),
        ("busy cores of agents", f"{need.agent_cores:.2f}"),
        ("busy cores of compactors", f"{need.compactor_cores:.2f}"),
        ("PUTs per second", f"{need.puts_s:,.1f}"),
        ("GETs per second", f"{need.gets_s:,.1f}"),
        ("stored GB", f"{need.stored_bytes / GB:,.0f}"),
        ("busy cores of Postgres", f"{need.postgres_cores:.2f}"),
        ("WAL, MB per second", f"{need.wal_bytes_s / 1e6:.2f}"),
        ("Postgres' disk with a day of WAL, GB", f"{need.metastore_bytes / GB:,.1f}"),
    ]


def bar(value: float, most: float) -> str:
    """Return a bar: at least one block for what costs anything, BAR_WIDTH for `most`."""
    return "█" * max(1, round(BAR_WIDTH * value / most))


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"not above 0: {text}")
    return value


def _members(text: str) -> int:
    return int(_not_negative(text))


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"not 0 or above: {text}")
    return value
