"""What early flushes cost and gain: `python -m load.flush_costs`, about two minutes.

Clients in a closed loop (one 1 KB request in flight each) and in an open-loop trickle (two requests per
second each), without early flushes, with the budget of S3 (10 a second), and with none (a directory's
default). One agent and a real Postgres, a directory as bucket with `--put-ms` added to each PUT. Shown:
requests per second, latency, PUTs per second and per MB, extents per second, CPU of the agent and of
Postgres per 1,000 requests, and the files that compaction will have to merge.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psycopg

from headrace.cli.bench.percentiles import percentile
from headrace.config.settings import Settings
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import migrate
from headrace.storage.clock import SystemClock
from headrace.storage.collector_tuning import tune_collector
from headrace.storage.objects.delayed import DelayedStore
from headrace.storage.objects.store import ObjectStore
from load.bench_agent import AgentBench
from load.machine_state import machine_state
from load.postgres_server import read_cost

POLICIES: dict[str, int | None] = {"never early": 0, "10 a second": 10, "unlimited": None}
CLIENTS = (1, 10, 300)
TRICKLE_PER_CLIENT = 2.0
REQUEST_BYTES = 1_000


class FlushLoad(NamedTuple):
    """`rate` in requests per second over all clients; 0: each client sends when it has its answer."""

    name: str
    clients: int
    rate: float


async def measure(bench: AgentBench, url: str, load: FlushLoad, policy: str, seconds: float) -> None:
    """Print one row."""
    extents, cost = _extents(url), read_cost(url)
    result = await bench.load(
        request_bytes=REQUEST_BYTES, connections=load.clients, inflight=1, rate=load.rate, seconds=seconds
    )
    spent, extents = read_cost(url).since(cost), _extents(url) - extents
    requests, elapsed = result["requests"], result["seconds"]
    p50, p99 = (percentile(result["latencies"], percent) * 1e3 for percent in (50, 99))
    puts, megabytes = len(bench.traces), result["bytes"] / 1e6
    print(
        f"{load.name:22} {policy:12} {requests / elapsed:8.0f} requests/s"
        f"  p50 {p50:6.1f} ms  p99 {p99:6.1f} ms"
        f"  {puts / elapsed:6.1f} PUT/s {puts / megabytes:8.1f} PUT/MB  {extents / elapsed:7.1f} extents/s"
        f"  per 1,000 requests: agent {result['cpu_seconds'] / requests * 1e6:6.0f} ms"
        f" Postgres {spent.cpu_seconds / requests * 1e6:6.0f} ms  {puts / elapsed * 3600:8.0f} files/h to merge",
        flush=True,
    )


def _extents(url: str) -> int:
    with psycopg.connect(url) as connection:
        (row,) = connection.execute("SELECT count(*) FROM extents").fetchall()
        return int(row[0])


async def run(place: Path, seconds: float, put_ms: float, slow: Callable[[ObjectStore], ObjectStore]) -> None:
    """Every load under every policy, on one Postgres."""
    with EmbeddedPostgres(place / "postgres") as url:
        migrate(url)
        print(f"{machine_state()}, {put_ms:.0f} ms added to each PUT", flush=True)
        loads = [FlushLoad(f"{n} clients, closed loop", n, 0.0) for n in CLIENTS]
        loads += [FlushLoad(f"{n} clients, trickle", n, n * TRICKLE_PER_CLIENT) for n in CLIENTS]
        for load in loads:
            for name, rate in POLICIES.items():
                settings = Settings(
                    metastore_url=url,
                    bucket=(place / "bucket").as_uri(),
                    listeners="PLAINTEXT://127.0.0.1:0",
                    http_port=0,
                    cache_bytes=0,
                    flush_early_per_second=rate,
                )
                async with AgentBench(settings, slow) as bench:
                    tune_collector()
                    await bench.load(request_bytes=REQUEST_BYTES, connections=load.clients, inflight=1, seconds=1)
                    await measure(bench, url, load, name, seconds)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--put-ms", type=float, default=30.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        place = Path(directory)
        place.chmod(0o711)
        (place / "postgres").mkdir(mode=0o711)
        clock = SystemClock()
        asyncio.run(
            run(
                place,
                args.seconds,
                args.put_ms,
                lambda store: DelayedStore(store, put_seconds=args.put_ms / 1e3, clock=clock),
            )
        )


if __name__ == "__main__":
    main()
