"""What hedged PUTs change in the tail of a flush file's upload: p50, p99 and p99.9 with and without, in turns.

Place: `python -m load hedges`. The store is the one of an agent, on the S3 server and the latency proxy of
`headrace bench` (cli/bench/headrace_target.py): log-normal waits; at sigma 0.5 their p99 is 3.2 times the median.
Invariant: the rounds of both take turns on one server. The first PUTs of a round, which teach the policy, do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random

from headrace.cli.bench.headrace_target import REGION, S3Rig, open_s3_rig, with_credentials
from headrace.cli.bench.targets import S3Latency
from headrace.storage.clock import SystemClock
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.hedging import HEDGES, SAMPLES_MIN
from headrace.storage.objects.measured import REQUESTS
from headrace.storage.objects.open import StoreOptions, open_store
from load.harness import Benchmark, BenchmarkRun

PERCENTS = (0, 5)


async def put_all(rig: S3Rig, percent: int, args: argparse.Namespace, rng: random.Random) -> list[float]:
    """Seconds of each PUT, `--parallel` at a time."""
    clock = SystemClock()
    options = StoreOptions(s3_endpoint=rig.endpoint, s3_region=REGION, s3_path_style=True, store_hedge_percent=percent)
    store = open_store(rig.bucket_url, options, clock=clock, rng=rng)
    body, seconds, left = rng.randbytes(args.kib * 1024), [], args.puts + SAMPLES_MIN

    async def some() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            key, started = object_key(new_file_id(clock.wall_ms(), rng)), clock.monotonic()
            await store.put(key, body)
            seconds.append(clock.monotonic() - started)

    await asyncio.gather(*(some() for _ in range(args.parallel)))
    await store.close()
    return seconds[SAMPLES_MIN:]


def _requests() -> float:
    return sum(float(REQUESTS.labels("put", result)._value.get()) for result in ("ok", "cancelled"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--put-ms", type=float, default=45, help="median latency of PUTs")
    parser.add_argument("--get-ms", type=float, default=15, help="median latency of GETs")
    parser.add_argument("--sigma", type=float, default=0.5, help="of the logarithm of the latencies")
    parser.add_argument("--puts", type=int, default=2_000, help="PUTs of a round, with and without")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--kib", type=int, default=64)
    parser.add_argument("--seed", type=int, default=7)


async def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    os.environ.update(with_credentials(os.environ))
    found: dict[int, list[float]] = {percent: [] for percent in PERCENTS}
    requests = dict.fromkeys(PERCENTS, 0.0)
    rng = random.Random(args.seed)
    async with open_s3_rig(run.place, S3Latency(args.put_ms, args.get_ms, args.sigma)) as rig:
        for _ in range(args.rounds):
            for percent in PERCENTS:
                before = _requests()
                found[percent] += await put_all(rig, percent, args, rng)
                requests[percent] += _requests() - before
    run.note(f"PUTs of {args.kib} KiB, {args.parallel} at a time, median {args.put_ms} ms, sigma {args.sigma}")
    for percent, seconds in found.items():
        tail = sorted(seconds)
        figures: dict[str, float] = {"PUTs": len(tail), "requests": requests[percent]}
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
            figures[f"ms {name}"] = tail[int(len(tail) * share)] * 1000
        run.row(f"store.hedge.percent {percent}", figures)
    run.row("hedges", {result: HEDGES.labels(result)._value.get() for result in ("won", "lost", "failed")})


BENCHMARK = Benchmark("the tail of PUTs on S3 with and without hedges", benchmark, add_arguments)
