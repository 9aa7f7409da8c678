"""Where the time of a commit goes: reads of the clock between the steps of commit_files.sql.

It replaces the function of the benchmark's own database.
Invariant: a step begins at a text of the file; a text that is not there once is an error.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import psycopg

from headrace.metastore.postgres.sql_files import function_files
from load.benchmarks.commit import PEER, SMALLEST, CommitBench, CommitWorkload, installation_of, opened
from load.harness import Benchmark, BenchmarkRun

STEPS = {
    "cluster, locks of shards": "    SELECT commit_shards, life INTO",
    "agent, file's row": "    -- Which files are ours",
    "look-up of partitions and heads": "    -- Are the partitions",
    "look-up of producers": "    -- Do the producers continue",
    "layout of the answer": "    IF v_is_txn OR cardinality",
    "extents, feed, heads": "    -- What readers see",
    "producers": "    -- What the next commit judges by",
    "answer": "    -- The answer to the caller",
}
"""Each step and the text that it begins with."""
WITHOUT = {
    "inserting extents": ("    ), appended AS (", "    ), numbered AS ("),
    "the feed": ("    ), numbered AS (", "    ), moved AS ("),
}
"""Parts of a step, found by leaving them out: from the first text up to the second."""
WARM = 20


def timed(source: str) -> str:
    """Return the function with a clock; `commit_files.us` has the microseconds of each step of the last call."""
    for number, text in enumerate(STEPS.values()):
        if source.count(text) != 1:
            raise ValueError(f"the step begins elsewhere: text={text!r}")
        source = source.replace(text, f"    v_at_{number} := clock_timestamp();\n{text}")
    ends = len(STEPS)
    clocks = "".join(f"    v_at_{number} timestamptz;\n" for number in range(ends + 1))
    source = source.replace("DECLARE\n", f"DECLARE\n{clocks}", 1)
    durations = ", ".join(f"extract(epoch FROM v_at_{number + 1} - v_at_{number}) * 1e6" for number in range(ends))
    report = f"PERFORM set_config('commit_files.us', concat_ws(',', {durations}), false);\n"
    report = f"    v_at_{ends} := clock_timestamp();\n    {report}"
    head, returned, tail = source.rpartition("        RETURN;\n")
    last = tail.rindex("END $$;")
    return f"{head}{report}{returned}{tail[:last]}{report}{tail[last:]}"


async def tell_steps(run: BenchmarkRun, bench: CommitBench, workload: CommitWorkload, commits: int) -> None:
    """Tell the least and the middle time of each step, and of the parts in WITHOUT."""
    (source,) = [file.text for file in function_files() if file.name == "commit_files"]
    whole = await _measured(bench, workload, commits, source)
    run.note(f"{workload.name}, {commits} commits")
    for name, (least, middle) in zip(STEPS, whole, strict=True):
        run.row(name, {"us least": least, "us median": middle})
    least_of_all, middle_of_all = map(sum, zip(*whole, strict=True))
    run.row("all", {"us least": least_of_all, "us median": middle_of_all})
    step = list(STEPS).index("extents, feed, heads")
    for name, (first, until) in WITHOUT.items():
        begins = source.index(first)
        fewer = source[:begins] + source[source.index(until, begins) :]
        part = await _measured(bench, workload, commits, fewer)
        run.row(f"of these {name}", {"us least": whole[step][0] - part[step][0]})
    _install(bench, source)


async def _measured(
    bench: CommitBench, workload: CommitWorkload, commits: int, source: str
) -> list[tuple[float, float]]:
    _install(bench, timed(source))
    (committer,) = await bench.committers(workload, 1)
    rows = []
    for _ in range(WARM + commits):
        await bench.commit(committer.next_file())
        ((reported,),) = await bench.query("SELECT current_setting('commit_files.us')")
        rows.append([float(us) for us in reported.split(",")])
    return [(min(column), statistics.median(column)) for column in zip(*rows[WARM:], strict=True)]


def _install(bench: CommitBench, source: str) -> None:
    with psycopg.connect(bench.url, autocommit=True) as connection:
        connection.execute(source.encode())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--commits", type=int, default=500, help="of each workload")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bin-dir", type=Path, help="another Postgres than the embedded one")


async def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    async with opened(run.folder("postgres"), args.seed, installation_of(args.bin_dir)) as bench:
        for workload in (SMALLEST, *PEER):
            await tell_steps(run, bench, workload, args.commits)


BENCHMARK = Benchmark("the time of each step of a commit inside of Postgres", benchmark, add_arguments)
