"""`make demo`: start two agents, produce and consume the flights, kill one agent, check everything.

On S3: `make demo FLAGS="--bucket s3://name/prefix"`, and HEADRACE_S3_ENDPOINT for a store that is not AWS's. As every
`headrace dev` on S3 it keeps small files in Postgres first. On an emulator of Azure or Google Cloud, or an S3 server,
that the demo starts (`make tools` installs it): `make demo FLAGS="--store azure"`.

Exit status 1 when a record is missing, doubled, changed or out of order.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from load.demo.consuming import Consumed, Group
from load.demo.flights import records
from load.demo.producing import Produced, produce
from load.demo.report import report
from load.dev_server import DevServer
from tests.tools import why_missing
from tests.torture.servers import CREDENTIALS, NEEDS, STORES

TOPIC = "flights"
PARTITIONS = 12


def main() -> int:
    """Run the demo; 0 when every check passes."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(".demo"))
    parser.add_argument("--bucket", help="s3://name/prefix in the place of a directory")
    parser.add_argument("--store", choices=STORES, help="start this object storage, and keep the bucket there")
    parser.add_argument("--limit", type=int, default=None, help="only this many flights")
    parser.add_argument("--rate", type=int, default=20_000, help="records per second")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)  # aiokafka tells at length that an agent is gone: it was killed on purpose
    console = Console()
    shutil.rmtree(args.data_dir, ignore_errors=True)
    console.print("loading the data set: every flight that left New York City in 2013")
    rows = list(records(args.limit))
    if args.store and (reason := why_missing(NEEDS[args.store])):
        parser.error(f"{reason}: make tools")
    with ExitStack() as started:
        bucket = {"bucket": args.bucket} if args.bucket else {}
        if args.store:
            os.environ.update(CREDENTIALS)
            place = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="headrace-demo-")))
            store = started.enter_context(STORES[args.store](place))
            bucket = store.settings(store.port)
        shown = bucket.get("bucket", "a directory bucket")
        console.print(f"starting Postgres, {shown} and two agents under {args.data_dir}/")
        server = started.enter_context(DevServer(args.data_dir, agents=2, settings=settings(bucket)))
        produced, consumed = asyncio.run(_run(console, server, rows, args.rate))
        status = report(console, server, produced, consumed, len(rows))
    console.print("to look around: headrace dev --agents 2, and headrace console -b 127.0.0.1:9092 in another terminal")
    return status


def settings(bucket: Mapping[str, object]) -> dict[str, object]:
    """Return what `headrace dev` is started with. `bucket`: the settings of its place; empty: a directory."""
    return {
        "broker.session.timeout.ms": 3_000,
        "broker.heartbeat.interval.ms": 500,
        "group.initial.rebalance.delay.ms": 500,
        **bucket,
    }


async def _run(
    console: Console, server: DevServer, rows: list[tuple[bytes, bytes]], rate: int
) -> tuple[Produced, Consumed]:
    first, second = server.agents
    console.print(f"producing through {first.kafka}, consuming through {second.kafka}; {first.kafka} will be killed")
    await server.create_topic(TOPIC, PARTITIONS)
    progress = Progress(TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    sent = progress.add_task("produced", total=len(rows))
    read = progress.add_task("consumed", total=len(rows))
    killed = False

    def on_sent(count: int) -> None:
        nonlocal killed
        progress.update(sent, completed=count)
        if count >= len(rows) // 2 and not killed:
            killed = True
            server.remember_metrics()
            os.kill(first.pid, signal.SIGKILL)
            progress.console.print(f"  killed the agent at {first.kafka} (SIGKILL) after {count:,} records")

    counts: asyncio.Queue[int] = asyncio.Queue()

    async def show() -> None:
        while True:
            progress.update(read, completed=await counts.get())

    loop = asyncio.get_running_loop()
    with progress, ThreadPoolExecutor(1) as pool:
        showing = asyncio.create_task(show())
        group = Group(second.kafka, TOPIC, PARTITIONS, members=2)
        reading = asyncio.create_task(group.read(len(rows), counts))
        await group.joined.wait()
        produced = await loop.run_in_executor(pool, produce, server.bootstrap, TOPIC, rows, rate, on_sent)
        consumed = await reading
        showing.cancel()
    return produced, consumed


if __name__ == "__main__":
    sys.exit(main())
