"""What the S3 server of `headrace bench` with `bucket=s3` gives by itself: PUTs and GETs, without Headrace.

Place: `python -m load.bench_s3_rig`. The client is tests/tools/go-s3/load with presigned URLs; server and proxy are
those of cli/bench/s3_rig.py. Headrace cannot be faster on this rig than this client: a goal in MB/s is the wanted
figure or 80 % of the rig's, whichever is less. Rows without the proxy take turns with the others, and show whether the
proxy is the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from headrace.cli.bench.process_usage import ProcessUsage
from headrace.cli.bench.report import number
from headrace.cli.bench.s3_rig import BUCKET, S3Rig, find_program, open_s3_rig, s3_client
from headrace.cli.bench.target_options import S3Latency
from load.machine_state import machine_state

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


async def run(args: argparse.Namespace) -> None:
    """Print a table: medians over the rounds."""
    latency, count = S3Latency(args.put_ms, args.get_ms, args.sigma), args.connections * OBJECTS_A_CONNECTION
    with tempfile.TemporaryDirectory(prefix="headrace-rig-") as directory:
        async with open_s3_rig(Path(directory), latency) as rig:
            print(f"{args.connections} connections, {latency}; {machine_state()}")
            print("| | MB/s | requests/s | p50 / p99 ms | CPU s/GB |\n| --- | --- | --- | --- | --- |")
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
                        print(line(f"{method} of {name}{way}", results), flush=True)


def line(title: str, results: list[RigResult]) -> str:
    """A row of the table. Pure."""

    def middle(values: list[float]) -> str:
        return number(statistics.median(values))

    cpu = " + ".join(
        f"{kind} {middle([result.cpu_s_per_gb[kind] for result in results])}" for kind in results[0].cpu_s_per_gb
    )
    latency = f"{middle([result.p50_ms for result in results])} / {middle([result.p99_ms for result in results])}"
    rates = middle([result.mb_per_s for result in results]), middle([result.requests_per_s for result in results])
    return f"| {title} | {rates[0]} | {rates[1]} | {latency} | {cpu} |"


def main() -> None:
    """Measure with the latencies of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--put-ms", type=float, default=0, help="median latency of PUTs")
    parser.add_argument("--get-ms", type=float, default=0, help="median latency of GETs")
    parser.add_argument("--sigma", type=float, default=0.5, help="of the logarithm of the latencies")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
