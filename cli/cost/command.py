"""The command line of `headrace cost`: a table of needs, bills side by side with bars, or JSON.

Place: a subcommand of cli/main.py; model.py has the sums. It connects to nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from headrace.cli.cost.data import Prices, measured, prices
from headrace.cli.cost.model import GB, Bill, Needs, Workload, bills, early_flush_bill, needs
from headrace.cli.cost.plot import picture
from headrace.cli.output import write
from headrace.cli.plain_console import PlainConsole
from headrace.storage.errors import InvalidError

DESCRIPTION = """\
What a workload needs of machines, bucket and Postgres, and what that costs in a month, next to Kafka in three zones,
the same Kafka with tiered storage (KIP-405), and a managed Kafka. Constants were measured (cli/cost/constants.toml
names each run), prices have a date and a source (cli/cost/prices.toml). Right within a factor of two: measure your own
load before you decide.

  headrace cost --write-mib-s 100 --fanout 3 --retention-days 7
  headrace cost --write-mib-s 10 --fanout 3 --plot cost.svg
  headrace cost --write-mib-s 10 --batch-kib 4 --partitions 1000 --json
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
    parser.add_argument("--prices", type=Path, metavar="FILE", help="prices other than those of prices.toml")
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
    )
    constants, list_prices = measured(), prices(args.prices)
    need, found = needs(workload, constants), bills(workload, constants, list_prices)
    if args.plot:
        _write(args.plot, picture(workload, constants, list_prices))
    if args.json:
        write(json.dumps(_document(workload, need, found, list_prices), indent=1))
    else:
        _show(PlainConsole(), need, found, list_prices)
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


def _show(console: PlainConsole, need: Needs, found: Sequence[Bill], list_prices: Prices) -> None:
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
