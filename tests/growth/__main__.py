"""`make demo-growth`: topics change their numbers of partitions under load, and the order is checked.

First with clients of headrace.client, which know counts: from 8 to 13 partitions, and down to 9. Then with librdkafka's
unmodified clients: 4 partitions double, and halve again.
Exit status 1 when a record is missing, doubled or out of order, or a callback came at the wrong time.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from load.dev_server import DevServer
from tests.growth import alternating_clients
from tests.growth.checks import KeyAssigned, MaybeRevoked, OrderReport, check_events
from tests.growth.ordered_run import OrderedRun

TOPIC = "growing"
COUNTS = (8, 13, 9)
SETTINGS: dict[str, object] = {
    "group.consumer.heartbeat.interval.ms": 1_000,
    "group.consumer.min.heartbeat.interval.ms": 1_000,
    "group.initial.rebalance.delay.ms": 0,
}
"""Settings with which members learn of new partitions within a second."""


def main() -> int:
    """Run the demonstration; 0 when every check passes."""
    parser = argparse.ArgumentParser(prog="make demo-growth", description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(".demo-growth"))
    parser.add_argument("--rate", type=int, default=1_000, help="records per second of each of 3 producers")
    parser.add_argument("--seconds", type=float, default=10, help="load at each number of partitions")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    console = Console()
    shutil.rmtree(args.data_dir, ignore_errors=True)
    console.print(f"starting Postgres, a directory bucket and two agents under {args.data_dir}/")
    with DevServer(args.data_dir / "ordered", agents=2, settings=SETTINGS) as server:
        failed = asyncio.run(_ordered(console, server, args.rate, args.seconds))
    with DevServer(args.data_dir / "unmodified", agents=2, settings=alternating_clients.SETTINGS) as server:
        return _unmodified(console, server) or failed


async def _ordered(console: Console, server: DevServer, rate: int, seconds: float) -> int:
    """Run clients that wait for each other: headrace.client."""
    await server.create_topic(TOPIC, COUNTS[0])
    run = OrderedRun(server.bootstrap, TOPIC, producers=3, members=3, keys=100, rate=rate, heartbeat_interval_ms=500)
    held: list[tuple[int, float]] = []
    async with run:
        for count in COUNTS:
            if count != COUNTS[0]:
                await asyncio.to_thread(alter_count, server.bootstrap, TOPIC, count)
            began = time.perf_counter()
            await run.until_all_go_on()
            held.append((count, time.perf_counter() - began))
            console.print(f"{count} partitions: all keys go on after {held[-1][1]:.1f} s")
            await asyncio.sleep(seconds)
        await run.finish()
    report = check_events(run.events, run.sent)
    return _show(console, run, report, held)


def _unmodified(console: Console, server: DevServer) -> int:
    """Run unmodified clients: librdkafka's producers and a group of KIP-848."""
    console.print("4 partitions double and halve under librdkafka's producers and a group of KIP-848; about a minute")
    outcome = alternating_clients.run(server, 1)
    table = Table(title="Headrace: 4 -> 8 -> 4 partitions under unmodified clients", show_header=False)
    doubled, halved = outcome.seconds
    for name, value in (
        ("records", f"{outcome.acknowledged:,} acknowledged, {outcome.not_delivered:,} of them not delivered"),
        ("out of order", f"{sum(outcome.late.values()):,}"),
        ("given up by producers", f"{sum(outcome.failed.values()):,}"),
        ("until all groups read all partitions", f"{doubled:.1f} s"),
        ("until clients saw the lower count", f"{halved:.1f} s"),
    ):
        table.add_row(name, value)
    console.print(table)
    passed = outcome.is_right and outcome.acknowledged
    console.print("[green]every check passed[/]" if passed else "[red]a check failed[/]")
    return 0 if passed else 1


def alter_count(bootstrap: str, topic: str, count: int) -> None:
    """`headrace topics alter --partitions`."""
    command = [sys.executable, "-m", "headrace.cli.main", "topics", "alter", topic, "--partitions", str(count), "--yes"]
    subprocess.run([*command, "--bootstrap-server", bootstrap], check=True, stdout=subprocess.DEVNULL)


def _show(console: Console, run: OrderedRun, report: OrderReport, held: list[tuple[int, float]]) -> int:
    table = Table(title="Headrace: 8 -> 13 -> 9 partitions under load", show_header=False)
    for name, value in (
        ("records", f"{report.records:,} of {sum(run.sent.values()):,}, of {len(run.sent)} keys"),
        ("keys that changed partitions", f"{report.moves:,} times"),
        ("out of order", f"{len(report.out_of_order):,}"),
        ("moved without the callbacks in order", f"{len(report.without_callbacks):,}"),
        ("keys with missing records", f"{len(report.missing):,}"),
        ("onPartitionKeyMaybeRevoked", f"{sum(isinstance(each, MaybeRevoked) for each in run.events):,}"),
        ("onPartitionKeyAssigned", f"{sum(isinstance(each, KeyAssigned) for each in run.events):,}"),
        ("until all keys went on", ", ".join(f"{count}: {seconds:.1f} s" for count, seconds in held)),
    ):
        table.add_row(name, value)
    console.print(table)
    passed = report.moves and not (report.out_of_order or report.without_callbacks or report.missing)
    console.print("[green]every check passed[/]" if passed else "[red]a check failed[/]")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
