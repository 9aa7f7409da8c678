"""The comparisons of docs/BENCHMARKS.md: equal promises (Kafka with three replicas), S3, and low latency on S3.

Place: `python -m load compare_on_s3 FOLDER --kafka JARS`; it runs `headrace bench` once for each, and leaves the text,
JSON and plots in FOLDER. `--print` only shows the commands. `--before CHECKOUT` adds a version from before, in turns.
Invariant: all targets of a table are measured in one run, each row on every target before the next row. On a machine
that does something else the figures mean little: the load average is at the end of each text.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from load.harness import Benchmark, BenchmarkRun

FAR = "bucket=s3 put-ms=45 get-ms=15"
EQUAL_ROWS = "10k,1k,16kib,one,paced,java,read-1,read-4"
LOW = "low.latency.enable=true"
"""Each other target says that it is off: `headrace dev` turns it on for a bucket on S3."""
OFF = "low.latency.enable=false"
LOW_ROWS = "one,paced,many,16kib,java,10k"
S3_ROWS = "many,paced,one-5s,16kib,read-1,read-4,paced-replay"


def commands(folder: Path, kafka: str, before: str | None, seconds: int, rounds: int) -> dict[str, list[str]]:
    """Return the arguments of `headrace bench` by the name of the comparison. Pure."""
    older = [] if before is None else [f"before=headrace:{before} {FAR}"]
    targets = {
        "equal-promises": ["kafka3=kafka nodes=3", f"s3=dev {FAR} {OFF}", "directory=dev", "kafka1=kafka"],
        "s3": [f"s3=dev {FAR} {OFF}", f"at-once=dev bucket=s3 {OFF}", f"three=dev {FAR} {OFF} agents=3", *older],
        "low-latency": [
            f"low=dev {FAR} {LOW}",
            "kafka3=kafka nodes=3",
            "directory=dev",
            *(older or [f"s3=dev {FAR} {OFF}"]),
        ],
    }
    rows = {"equal-promises": EQUAL_ROWS, "s3": S3_ROWS, "low-latency": LOW_ROWS}
    return {
        name: [
            *("--kafka", kafka, "--target", first),
            *(part for other in others for part in ("--vs", other)),
            *("--rows", rows[name], "--seconds", str(seconds), "--rounds", str(rounds)),
            *("--json", str(folder / f"{name}.json"), "--plots", str(folder / name)),
        ]
        for name, (first, *others) in targets.items()
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kafka", required=True, help="where `make tools` put the jars")
    parser.add_argument("--before", help="a checkout with its own .venv")
    parser.add_argument("--only", choices=("equal-promises", "s3", "low-latency"))
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--print", action="store_true")


def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, arguments in commands(args.folder, args.kafka, args.before, args.seconds, args.rounds).items():
        if args.only in (None, name):
            run.note(shlex.join(["headrace", "bench", *arguments]))
            if not args.print:
                bench = [sys.executable, "-m", "headrace.cli.main", "bench", *arguments]
                with (args.folder / f"{name}.txt").open("w") as text:
                    ended = subprocess.run(bench, stdout=text, check=False)
                run.judge(f"{name} ended well", holds=ended.returncode == 0)


BENCHMARK = Benchmark(
    "both comparisons on S3: Kafka with three replicas, and several settings of Headrace", benchmark, add_arguments
)
