"""Compaction by a local worker and on Spark, on the same inputs in the same run.

    python -m load spark_compaction --plot compaction.png
    small   a merge to level 2 of --megabytes in --files files of level 0
    keyed   cleaning by key of --records records with --keys keys
Each job runs in a separate process (load/workloads/compaction_child.py): a worker, or a Spark in local mode with two
tasks and a JVM heap of 1 GB. A GB is 10^9 bytes of live batches. CPU: all of the process tree, user and system, without
the start of Python and of the JVM, which is shown separately. Memory: highest sum of a tree, read five times a second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from headrace.cli.bench.window import ProcessUsage
from headrace.config.cluster_values import proposed
from headrace.config.settings import Settings
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import UnavailableError
from load.harness import Benchmark, BenchmarkRun
from load.workloads.compaction_inputs import SIDES, Inputs

INPUTS = ("keyed", "small")
READ_SECONDS = 0.2
MB, GB = 1e6, 1e9


class TimedJob(NamedTuple):
    """One job. `start_cpu`: before it."""

    what: str
    side: str
    seconds: float
    cpu: float
    start_cpu: float
    memory: int
    size: int
    removed: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--megabytes", type=int, default=1_000)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--part-bytes", type=int, default=128 * 1024 * 1024)
    parser.add_argument("--only", choices=INPUTS, help="one of the two inputs")
    parser.add_argument("--plot", type=Path, help="a .png file to draw")


def benchmark(run: BenchmarkRun) -> None:
    bucket = run.folder("bucket")
    with run.postgres(values=proposed(Settings())) as url:
        jobs = asyncio.run(merge_both(url, bucket, run.args))
    report(run, jobs)
    if run.args.plot:
        draw(jobs, run.args.plot)


async def merge_both(url: str, bucket: Path, args: argparse.Namespace) -> list[TimedJob]:
    """Both sides of both inputs."""
    found = []
    metastore = await PostgresMetastore.open(url, Settings(metastore_pool_size=2))
    inputs = Inputs(url, metastore, bucket)
    await inputs.begin()
    try:
        for what in [args.only] if args.only else INPUTS:
            for side in SIDES:
                if what == "small":
                    job, size = await inputs.small(side, args.files, args.megabytes)
                else:
                    job, size = await inputs.keyed(side, args.records, args.keys)
                await metastore.jobs.enqueue_jobs([job])
                found.append(await asyncio.to_thread(timed, what, side, url, bucket, args.part_bytes, size))
    finally:
        await metastore.close()
    return found


def timed(what: str, side: str, url: str, bucket: Path, part_bytes: int, size: int) -> TimedJob:
    """Run the job that is due in a child process."""
    environment = os.environ | {
        "HEADRACE_METASTORE_URL": url, "HEADRACE_BUCKET": bucket.as_uri(),
        "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
    command = [sys.executable, "-m", "load.workloads.compaction_child", side, str(part_bytes)]
    with (
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,
        PeakMemory(child.pid) as memory,
    ):
        _answer(child, "ready")
        start_cpu, began = memory.usage.cpu_seconds()["child"], time.monotonic()
        _go_on(child)
        removed = _answer(child, "done")
        seconds = time.monotonic() - began
        cpu = memory.usage.cpu_seconds()["child"] - start_cpu
        memory.stop()
        _go_on(child)
    assert child.returncode == 0
    return TimedJob(what, side, seconds, cpu, start_cpu, memory.peak, size, int(removed or 0))


class PeakMemory:
    """Reads a process tree's memory again and again."""

    def __init__(self, pid: int) -> None:
        self.usage, self.peak = ProcessUsage({"child": [pid]}), 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """No further reading."""
        self._stopped.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stopped.wait(READ_SECONDS):
            try:
                self.peak = max(self.peak, self.usage.memory_bytes()["child"])
            except UnavailableError:
                return


def _answer(child: subprocess.Popen[str], word: str) -> str:
    """The rest of the next line that begins with the word."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(word):
            return line[len(word) :].strip()
    raise UnavailableError(f"the child ended: exit={child.wait()}")


def _go_on(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def report(run: BenchmarkRun, jobs: list[TimedJob]) -> None:
    """Tell a row of each job."""
    for job in jobs:
        figures = {
            "MB": job.size / MB,
            "MB/s": job.size / MB / job.seconds,
            "CPU s/GB": job.cpu / (job.size / GB),
            "CPU s of the start": job.start_cpu,
            "MB of memory, peak": job.memory / MB,
            "records removed": job.removed,
        }
        run.row(f"{job.what}, {job.side}", figures)
    by_what: dict[str, set[int]] = {}
    for job in jobs:
        by_what.setdefault(job.what, set()).add(job.removed)
    assert all(len(removed) == 1 for removed in by_what.values()), f"the sides differ: {by_what}"


def draw(jobs: list[TimedJob], place: Path) -> None:
    """Bars: MB/s, CPU seconds per GB, memory."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [f"{job.what}\n{job.side}" for job in jobs]
    colors = ["#4878a8" if job.side == "local" else "#d8a048" for job in jobs]
    figure, axes = pyplot.subplots(1, 3, figsize=(10, 3.2))
    for axis, label, values in zip(
        axes,
        ("MB/s", "CPU seconds per GB", "peak memory, MB"),
        (
            [job.size / MB / job.seconds for job in jobs],
            [job.cpu / (job.size / GB) for job in jobs],
            [job.memory / MB for job in jobs],
        ),
        strict=True,
    ):
        axis.bar(names, values, color=colors)
        axis.set_ylabel(label)
    figure.tight_layout()
    place.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(place, dpi=120)


BENCHMARK = Benchmark("merging and cleaning by a local worker, next to Spark", benchmark, add_arguments)
