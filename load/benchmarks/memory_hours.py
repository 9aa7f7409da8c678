"""Whether an agent's memory stays flat for hours: `python -m load memory_hours [--minutes 240] [--out DIRECTORY]`.

One agent with all roles, small caches, a Postgres and a directory as bucket. A producer sends --speed records a second
to --partitions partitions, a consumer group follows them, and the agent merges their files. A higher --speed runs the
records of more time in less, as many batches with more records in each. A sample every --sample seconds: resident and
unshared size, what glibc's heap and Python's arenas hold and use, parts of headrace_memory_bytes, threads, merges.
Prints a line for each, and a verdict: how far resident memory of later quarters of the run is above that of the second
(load/workloads/memory_hours/verdict.py). Writes samples.json and memory.png. Status 1 if memory is not flat. More
settings as NAME=VALUE.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import URLError

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.main import main as headrace
from headrace.config.memory_budget import MIB
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.formatted import formatted_cluster_id
from headrace.metastore.postgres.migrate import migrate
from load.agent_child import AgentChild
from load.harness import Benchmark, BenchmarkRun
from load.machine_state import machine_state
from load.workloads.memory_hours.sampling import Sample, sample
from load.workloads.memory_hours.verdict import GROWTH_MAX, FlatVerdict, after_merges, judge

TOPIC = "hours"
TICK_SECONDS = 0.02
COLUMNS = {
    "rss": "rss",
    "uss": "uss",
    "heap": "arena",
    "free": "fordblks",
    "mapped": "hblkhd",
    "arenas": "python_arenas",
    "small": "python_used",
    "cache": "part fetch_cache",
    "kept": "part allocator",
    "merge": "part compaction",
}
"""Columns of sizes, and the fields that they show. `free` of `heap` is unused; `small` of `arenas` is used."""
DRAWN = {
    "rss": "resident",
    "arena": "glibc's heap",
    "part allocator": "idle in the heap",
    "python_arenas": "Python's arenas",
    "python_used": "used in the arenas",
    "part fetch_cache": "fetch cache",
}
OWN = {
    "log.level": "warning",
    "cache.bytes": 32 * MIB,
    "buffer.memory.bytes": 64 * MIB,
    "file.delete.delay.ms": 300_000,
    "process.roles": "broker,controller,compactor",
}


class RunningClients:
    """A producer and a consumer, in threads of this process."""

    def __init__(self, bootstrap: str, partitions: int, speed: float, record_bytes: int) -> None:
        self._bootstrap, self._partitions = bootstrap, partitions
        self._speed, self._record_bytes = speed, record_bytes
        self._ended = threading.Event()
        self.sent = self.received = self.failed = 0
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._consume)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        rng, speed = random.Random(1), self._speed
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 50})
        began, sent = time.monotonic(), 0
        while not self._ended.wait(TICK_SECONDS):
            due = min(int((time.monotonic() - began) * speed) - sent, int(speed))  # a stall is not made up for at once
            for number in range(sent, sent + due):
                try:
                    producer.produce(TOPIC, rng.randbytes(self._record_bytes), partition=number % self._partitions,
                                     on_delivery=self._delivered)  # fmt: skip
                except BufferError:
                    break
                sent += 1
            producer.poll(0)
        producer.flush(60)

    def _delivered(self, error: object, message: object) -> None:
        if error is None:
            self.sent += 1
        else:
            self.failed += 1

    def _consume(self) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "reader",
                             "auto.offset.reset": "earliest"})  # fmt: skip
        consumer.subscribe([TOPIC])
        while not self._ended.is_set():
            self.received += sum(message.error() is None for message in consumer.consume(1_000, 0.2))
        consumer.close()


@contextmanager
def running_agent(place: Path, args: argparse.Namespace) -> Iterator[tuple[AgentChild, Path, Path]]:
    """An agent on a new cluster; the files of its probe and of its log."""
    probed, log = place / "probed.jsonl", place / "agent.log"
    probed.touch()
    (place / "bucket").mkdir()
    with ExitStack() as stack:
        url = stack.enter_context(EmbeddedPostgres(place, fsync=False))
        migrate(url)
        where = {"metastore.url": url, "bucket": (place / "bucket").as_uri()}
        cluster_id = formatted_cluster_id(url)
        words = [f"--{name.replace('.', '-')}={value}" for name, value in where.items()]
        assert headrace(["storage", "format", "--ignore-formatted", "--cluster-id", str(cluster_id), *words]) == 0
        given = dict(setting.split("=", 1) for setting in args.settings)
        module = ("load.workloads.memory_hours.probe", str(probed), str(args.sample))
        yield stack.enter_context(AgentChild(where | OWN | given, log, module)), probed, log


def watch(run: BenchmarkRun, agent: AgentChild, clients: RunningClients, probed: Path, log: Path) -> list[Sample]:
    """Samples until the time is over; a row for each."""
    args = run.args
    samples: list[Sample] = []
    began = time.monotonic()
    while (passed := time.monotonic() - began) < args.minutes * 60:
        try:
            now = sample(agent, probed, log) | {"seconds": passed, "sent": clients.sent, "received": clients.received}
        except (TimeoutError, URLError) as error:  # of /metrics, on a busy machine
            run.note(f"{passed / 60:.1f} no sample: {error}")
            continue
        samples.append(now)
        sizes = {f"MiB {name}": now[field] / MIB for name, field in COLUMNS.items() if field in now}
        figures = {"records": clients.sent} | sizes | {"threads": now["threads"]}
        merges = {"L1": now.get("merges 1", 0), "L2": now.get("merges 2", 0)}
        run.row(f"minute {passed / 60:.1f}", figures | merges)
        time.sleep(max(0.0, args.sample - (time.monotonic() - began - passed)))
    return samples


def summary(samples: list[Sample], verdict: FlatVerdict) -> str:
    """The verdict in words."""
    lines = [
        f"quarter {number}: resident mean {quarter.level / MIB:.1f}, least {quarter.least / MIB:.1f},"
        f" most {quarter.peak / MIB:.1f} MiB"
        for number, quarter in enumerate(verdict.quarters, 1)
    ]
    large = after_merges([s.get("merges 2", 0) for s in samples], [s["rss"] for s in samples])
    lines.append("least after merges to level 2: " + " ".join(f"{n}:{size / MIB:.0f}" for n, size in large))
    last = samples[-1]
    lines.append(
        f"{last['sent']:,.0f} records sent, {last['received']:,.0f} read, {last['seconds'] / 60:.0f} minutes,"
        f" {last.get('merges 1', 0):.0f} and {last.get('merges 2', 0):.0f} merged files of level 1 and 2"
    )
    lines.append(
        f"{'flat' if verdict.is_flat else 'NOT flat'}: mean {verdict.level_growth:+.1%},"
        f" peak {verdict.peak_growth:+.1%} of later quarters against the second (at most {GROWTH_MAX:.0%})"
    )
    return "\n".join(lines)


def draw(samples: list[Sample], title: str, path: Path) -> None:
    """Draw sizes over minutes, with the merges to level 2 as vertical lines."""
    from matplotlib.figure import Figure  # takes half a second, and only a drawing needs it

    minutes = [each["seconds"] / 60 for each in samples]
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for field, label in DRAWN.items():
        axes.plot(minutes, [each.get(field, 0) / MIB for each in samples], label=label)
    merges = [each.get("merges 2", 0) for each in samples]
    for minute, before, after in zip(minutes[1:], merges, merges[1:], strict=False):
        if after > before:
            axes.axvline(minute, color="grey", alpha=0.25, linewidth=1)
    axes.set(title=title, xlabel="minutes (grey: merges to level 2)", ylabel="MiB")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=110)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--minutes", type=float, default=240)
    parser.add_argument("--speed", type=float, default=2_000, help="records per second")
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--sample", type=float, default=10, help="seconds between samples")
    parser.add_argument("--out", type=Path, default=Path("memory"), help="directory for samples.json and memory.png")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings of the agent")


def benchmark(run: BenchmarkRun) -> None:
    args, state, place = run.args, machine_state(), run.place
    with running_agent(place, args) as (agent, probed, log):
        admin = AdminClient({"bootstrap.servers": agent.kafka})
        admin.create_topics([NewTopic(TOPIC, args.partitions, 1)])[TOPIC].result()
        clients = RunningClients(agent.kafka, args.partitions, args.speed, args.record_bytes)
        clients.start()
        try:
            samples = watch(run, agent, clients, probed, log)
        finally:
            clients.stop()
    verdict = judge([each["rss"] for each in samples])
    run.note(summary(samples, verdict))
    args.out.mkdir(parents=True, exist_ok=True)
    asked = {name: value for name, value in vars(args).items() if name not in ("out", "json")}
    (args.out / "samples.json").write_text(json.dumps({"machine": state} | asked | {"samples": samples}) + "\n")
    draw(samples, f"{args.speed:,.0f} records/s, {args.partitions} partitions", args.out / "memory.png")
    run.judge("memory is flat", holds=verdict.is_flat)


BENCHMARK = Benchmark("an agent's memory by part, sampled for hours; whether it is flat", benchmark, add_arguments)
