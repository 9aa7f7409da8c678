"""What the S3 server of `headrace bench` with `bucket=s3` gives by itself: PUTs and GETs, without Headrace.

Place: `python -m load s3_rig`. The client is tests/tools/go-s3/load with presigned URLs; server and proxy are
those of cli/bench/headrace_target.py. Headrace cannot be faster on this rig than this client: a goal in MB/s is the
wanted figure or 80 % of the rig's, whichever is less. Rows without the proxy take turns with the others, and show
whether the proxy is the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from typing import NamedTuple

from headrace.cli.bench.headrace_target import BUCKET, S3Rig, find_program, open_s3_rig, s3_client
from headrace.cli.bench.targets import S3Latency
from headrace.cli.bench.window import ProcessUsage
from load.harness import Benchmark, BenchmarkRun

LOAD = "headrace-s3-load"
SIZES = {"4 MiB": 4 << 20, "64 KiB": 64 << 10}
OBJECTS_A_CONNECTION = 4
URL_SECONDS = 3_600


class RigResult(NamedTuple):
    """Of one run."""

    mb_per_s: float
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_s_per_gb: dict[str, float]


async def measure(rig: S3Rig, method: str, size: int, urls: list[str], args: argparse.Namespace) -> RigResult:
    """PUT or GET for some seconds; CPU is that of server and proxy."""
    usage = ProcessUsage(rig.roots)
    before = usage.cpu_seconds()
    process = await asyncio.create_subprocess_exec(
        *(find_program(LOAD), "-method", method, "-size", str(size)),
        *("-connections", str(args.connections), "-seconds", str(args.seconds)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate("\n".join(urls).encode())
    if process.returncode:
        raise SystemExit(f"{method} of {size} bytes failed")
    spent = {kind: now - before[kind] for kind, now in usage.cpu_seconds().items()}
    found = json.loads(printed)
    return RigResult(
        found["bytes"] / 1e6 / found["seconds"],
        found["requests"] / found["seconds"],
        found["p50_ms"],
        found["p99_ms"],
        {kind: seconds / (found["bytes"] / 1e9) for kind, seconds in spent.items()},
    )


async def presign(endpoint: str, operation: str, name: str, count: int) -> list[str]:
    """Return URLs of `count` objects."""
    async with s3_client(endpoint) as client:
        return [
            await client.generate_presigned_url(
                operation, Params={"Bucket": BUCKET, "Key": f"{name}-{index}"}, ExpiresIn=URL_SECONDS
            )
            for index in range(count)
        ]


def figures_of(results: list[RigResult]) -> dict[str, float]:
    """Return a row: medians over the rounds. Pure."""
    figures = {
        "MB/s": statistics.median(result.mb_per_s for result in results),
        "requests/s": statistics.median(result.requests_per_s for result in results),
        "ms p50": statistics.median(result.p50_ms for result in results),
        "ms p99": statistics.median(result.p99_ms for result in results),
    }
    for kind in results[0].cpu_s_per_gb:
        figures[f"CPU s/GB of {kind}"] = statistics.median(result.cpu_s_per_gb[kind] for result in results)
    return figures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--put-ms", type=float, default=0, help="median latency of PUTs")
    parser.add_argument("--get-ms", type=float, default=0, help="median latency of GETs")
    parser.add_argument("--sigma", type=float, default=0.5, help="of the logarithm of the latencies")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=1)


async def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    latency, count = S3Latency(args.put_ms, args.get_ms, args.sigma), args.connections * OBJECTS_A_CONNECTION
    async with open_s3_rig(run.place, latency) as rig:
        run.note(f"{args.connections} connections, {latency}, medians")
        for name, size in SIZES.items():
            for method, operation in (("PUT", "put_object"), ("GET", "get_object")):
                urls = {
                    way: await presign(endpoint, operation, name.replace(" ", "-"), count)
                    for way, endpoint in (("", rig.endpoint), (", no proxy", rig.direct))
                }
                found: dict[str, list[RigResult]] = {way: [] for way in urls}
                for _ in range(args.rounds):
                    for way, ways_urls in urls.items():
                        found[way].append(await measure(rig, method, size, ways_urls, args))
                for way, results in found.items():
                    run.row(f"{method} of {name}{way}", figures_of(results))


BENCHMARK = Benchmark(
    "what S3 server and latency proxy of headrace bench carry by themselves", benchmark, add_arguments
)
