"""`headrace bench`: arguments, progress and output of a measurement.

Place: run.py measures; this module says what and shows it.
Invariant: nothing is written but the data folder of the targets, which is removed, and the files that the caller names.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from headrace.cli.bench.kafka_target import find_jars
from headrace.cli.bench.measurement import Measurement, summarise
from headrace.cli.bench.report import document, legend, machine, make_table, number, warm_up_line
from headrace.cli.bench.rows import ROWS, JavaProduce, Row, pick
from headrace.cli.bench.run import BenchPlan, Outcome, run_plan
from headrace.cli.bench.target_bench import Bounds
from headrace.cli.bench.targets import DEV, KAFKA, PUT_DELAY, TargetSpec, parse_target
from headrace.cli.options import INT32_MAX, whole
from headrace.cli.output import write, write_error
from headrace.cli.plain_console import PlainConsole, table_console
from headrace.config.errors import ConfigError
from headrace.config.extras import not_installed
from headrace.storage.clock import SystemClock

DESCRIPTION = """\
Measure throughput, latency, CPU and storage requests of one target, or of several in turns: each row
of load runs on every target before the next row, --rounds times, and medians are shown. The clients
are processes of librdkafka and, if --kafka names Apache Kafka's jars, of Kafka's ProducerPerformance.
What is produced is read back and checked.

  headrace bench
  headrace bench --rows 10k,one --seconds 2
  headrace bench --kafka jars --vs kafka --json result.json --plots plots
  headrace bench --vs before=headrace:/src/headrace-before --vs "slow=dev put-delay-ms=30"
  headrace bench --kafka jars --target "kafka nodes=3" --vs "dev agents=3" \\
    --vs "s3=dev bucket=s3 put-ms=45 get-ms=15 agents=3"

Targets that are started are warmed up first, until two short loads in a row differ by less than 10 %, for a
minute at most.

A target is [NAME=]KIND [KEY=VALUE ...], with the settings of what is started as KEY=VALUE. Kinds:
  dev                this Headrace: an agent, a compactor, an embedded Postgres, a directory as bucket. agents=N
                     starts several agents; bucket=s3 an S3 server (versitygw) and before it a proxy that delays
                     each request, log-normal: put-ms=N get-ms=N are the medians (0), sigma=N (0.5) of the
                     logarithm, seed=N. `make tools` of a checkout builds both programs with Go
  headrace:COMMAND   another Headrace by its command, or by the folder of a checkout with its .venv; as dev
  kafka[:DIR]        Apache Kafka, one node with its defaults, from the jars in DIR (default: --kafka). nodes=3
                     starts three: replication factor 3, min.insync.replicas 2; all rows produce with acks=all
  HOST:PORT,...      a running cluster; http=HOST:PORT and pid=N say where to read its metrics and CPU
"""
SECONDS, QUICK_SECONDS, ROUNDS, PRELOAD_MB, QUICK_PRELOAD_MB = 3, 1, 3, 256, 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--target", default=DEV, metavar="TARGET", help="what to measure (dev)")
    parser.add_argument(
        "--vs", action="append", default=[], metavar="TARGET", help="measure this one in turns with it; repeatable"
    )
    parser.add_argument("--rows", metavar="ROW,...", help=f"only these rows: {','.join(row.name for row in ROWS)}")
    parser.add_argument("--rounds", type=whole(1, 1000), help=f"how often each row runs ({ROUNDS})")
    parser.add_argument("--seconds", type=whole(1, 3600), help=f"upper bound of one run ({SECONDS})")
    parser.add_argument("--records", type=whole(1, INT32_MAX), default=INT32_MAX, help="upper bound of one run")
    parser.add_argument("--quick", action="store_true", help="one round of one second, to see that it works")
    parser.add_argument(
        "--put-delay-ms", type=whole(0, 60_000), metavar="N", help="each PUT of --target dev takes this much longer"
    )
    parser.add_argument("--kafka", type=Path, metavar="DIR", help="folder of Apache Kafka's jars, or its home")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run to this file")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw PNG plots of the medians in this folder")
    parser.add_argument(
        "--work-dir", type=Path, metavar="DIR", help="where targets keep their data (the temporary folder)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print; 1 if a run failed."""
    for module in ("confluent_kafka", *(["matplotlib"] if args.plots else [])):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(not_installed(module, "bench"))
    specs = _specs(args)
    jars = _jars(args, specs)
    rows = _rows(args.rows, jars)
    bounds = Bounds(
        seconds=args.seconds or (QUICK_SECONDS if args.quick else SECONDS),
        records=args.records,
        preload_bytes=(QUICK_PRELOAD_MB if args.quick else PRELOAD_MB) * 1_000_000,
    )
    rounds = args.rounds or (1 if args.quick else ROUNDS)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=args.work_dir) as directory,
        BenchProgress() as progress,
    ):
        folder = Path(directory)
        folder.chmod(0o711)
        plan = BenchPlan(specs, rows, rounds, bounds, folder, jars, steady=not args.quick)
        outcome = asyncio.run(run_plan(plan, SystemClock(), progress))
    _show(plan, outcome)
    if args.json:
        args.json.write_text(json.dumps(document(plan, outcome), indent=1) + "\n", encoding="utf-8")
    if args.plots:
        from headrace.cli.bench.plots import draw_plots  # here: only plots need matplotlib

        draw_plots(summarise(outcome.runs), args.plots)
    return 1 if outcome.failures else 0


def _specs(args: argparse.Namespace) -> list[TargetSpec]:
    specs = [parse_target(text) for text in (args.target, *args.vs)]
    if args.put_delay_ms is not None:
        if specs[0].kind != DEV:
            raise ConfigError("--put-delay-ms needs --target dev")
        specs[0].settings[PUT_DELAY] = str(args.put_delay_ms)
        specs[0].options()
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise ConfigError(f"two targets have the same name: {', '.join(names)} (NAME=TARGET gives one another)")
    return specs


def _jars(args: argparse.Namespace, specs: list[TargetSpec]) -> Path | None:
    """Return the jars of --kafka, or of the first Kafka that is measured; None if there are none. ConfigError for a
    wrong folder.
    """
    folders = [Path(spec.where) for spec in specs if spec.kind == KAFKA and spec.where]
    folder = args.kafka or (folders[0] if folders else None)
    return find_jars(folder) if folder or any(spec.kind == KAFKA for spec in specs) else None


def _rows(names: str | None, jars: Path | None) -> list[Row]:
    """Return the rows without Java or jars the rows of Kafka's load generator are left out, unless they are asked
    for: ConfigError.
    """
    rows = pick(names)
    java = [row.name for row in rows if isinstance(row.load, JavaProduce)]
    if not java or (jars and shutil.which("java")):
        return rows
    reason = "they need java and the jars of --kafka (`make tools` of a checkout brings them)"
    if names is not None:
        raise ConfigError(f"rows {','.join(java)}: {reason}")
    write_error(f"left out rows {','.join(java)}: {reason}")
    return [row for row in rows if row.name not in java]


def _show(plan: BenchPlan, outcome: Outcome) -> None:
    summaries = summarise(outcome.runs)
    console = table_console()
    console.print(make_table(summaries, plan.rows))
    write(f"\nratio: throughput over that of {plan.specs[0].name}; medians of {plan.rounds} rounds")
    for text in legend(summaries):
        write(text)
    for target, done in outcome.warm_ups.items():
        write(warm_up_line(target, done))
    facts = machine()
    loads = " ".join(map(str, facts["load_average"]))
    write(f"machine: {facts['cores']} cores, load average {loads}, Python {facts['python']}")
    for text in outcome.failures:
        write(f"failed: {text}")


class BenchProgress:
    """A Watcher of run.py; use it with `with`."""

    def __init__(self) -> None:
        console = PlainConsole(stderr=True)
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("start", total=None)

    def __enter__(self) -> BenchProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, label: str, done: int, total: int, result: Measurement | str | None) -> None:
        self._bar.update(self._task, description=label, completed=done, total=total)
        if isinstance(result, str):
            self._bar.console.print(f"[{done}/{total}] {label}: failed: {result}", soft_wrap=True)
        elif result is not None:
            self._bar.console.print(f"[{done}/{total}] {label}: {line(result)}", soft_wrap=True)


def line(run: Measurement) -> str:
    """One run in a few words."""
    parts = [f"{number(run.mb_per_s)} MB/s", f"{number(run.records_per_s)} records/s"]
    for name, p50, p99 in (
        ("produce", run.produce_p50_ms, run.produce_p99_ms),
        ("end to end", run.end_to_end_p50_ms, run.end_to_end_p99_ms),
    ):
        if p50 is not None:
            parts.append(f"{name} {number(p50)} / {number(p99)} ms")
    parts += [f"{name} {number(spent)} s/GB" for name, spent in run.cpu_s_per_gb.items()]
    parts += [f"rig's {name} {number(spent)} s/GB" for name, spent in run.rig_cpu_s_per_gb.items()]
    return ", ".join(parts)
