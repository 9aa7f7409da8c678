"""One record per batch from hundreds of producers, idempotent and not: `python -m tests.hostile.many_producers`.

The agent runs in this process, a real Postgres (fsync on) and a local S3 API run in others; producers
and consumer are separate processes, so this process's CPU is the agent's. Three loads in one run:
idempotent; not idempotent, unmerged; not idempotent, merged at ingestion (W11). Each is measured twice:
without a consumer (CPU per batch) and with one (age of records when its poll returns them). With `--low-latency` the
topics have low.latency.enable, and the share of files that the metastore got is printed.
Figures are of the machine that runs them; what to compare are the ratios within one round. The loads take
turns at being first, and the median round counts: a single round's ratio was found off by a third.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psycopg
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from prometheus_client import CollectorRegistry

from headrace.agent.produce.files import FileTrace
from headrace.cli.bench.orders import percentile
from headrace.cli.process.open_process import open_agent
from headrace.cli.storage import format_bucket
from headrace.config.settings import Settings
from headrace.config.topic_configs import LOW_LATENCY_ENABLE
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import migrate
from headrace.storage.collector_tuning import tune_collector
from load.machine_state import machine_state
from load.postgres_server import read_cost
from tests.torture.servers import BUCKET, CREDENTIALS, S3Server

PARTITIONS = 8
AGE_P99_BAR_S = 0.5
AGENT_CPU_BAR_US = 40.0
RATIO_BAR = 1.3


@dataclass(frozen=True)
class Mode:
    """One of the loads."""

    name: str
    idempotent: bool
    merge_max_bytes: int


MODES = (
    Mode("idempotent", True, 65_536),
    Mode("plain, unmerged", False, 0),
    Mode("plain, merged", False, 65_536),
)


@dataclass
class Result:
    """One load of one round: CPU in microseconds per batch, times in seconds."""

    agent_us: float
    postgres_us: float
    acks: list[float]
    ages: list[float]
    batches_per_file: float
    stored_bytes_per_batch: float
    inline_share: float
    """Share of the files that went into the metastore first."""

    @property
    def cpu_us(self) -> float:
        """CPU time in µs of agent and Postgres together."""
        return self.agent_us + self.postgres_us


class Stored(NamedTuple):
    """All committed segment files: their bytes, how many, and how many of them were inline."""

    size_bytes: int
    files: int
    inline: int

    def since(self, before: Stored) -> Stored:
        """Return what came after that."""
        return Stored(*(now - then for now, then in zip(self, before, strict=True)))


_STORED = (
    "SELECT coalesce(sum(size), 0)::bigint, count(*), count(*) FILTER (WHERE is_inline(file_id)) FROM segment_files"
)


class Hostile:
    """One agent under one mode."""

    def __init__(self, settings: Settings, *, low_latency: bool = False) -> None:
        """`low_latency`: of the topics."""
        self._settings, self._low_latency = settings, low_latency
        self._traces: list[FileTrace] = []

    async def __aenter__(self) -> Hostile:
        self._process, self._agent = await open_agent(self._settings, self._traces.append, CollectorRegistry())
        await self._process.start()
        tune_collector()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._process.stop()

    async def measure(self, mode: Mode, topic: str, producers: int, rate: float, seconds: float) -> Result:
        """Warm up, then once without a consumer and once with one."""
        await self._create(topic)
        flags = [
            "--topic", topic, "--partitions", str(PARTITIONS), "--producers", str(producers), "--rate", str(rate)
        ]  # fmt: skip
        first = 1_000_000 if mode.idempotent else -1
        await self._load([*flags, "--seconds", "2", "--first-producer-id", str(first)])
        self._traces.clear()
        before = self._stored()
        summary = await self._load([*flags, "--seconds", str(seconds), "--first-producer-id", _later(first, 1)])
        stored, files = self._stored().since(before), len(self._traces)
        watched, ages = await self._watched(topic, [*flags, "--seconds", str(seconds)], _later(first, 2))
        return Result(
            summary["agent_cpu_seconds"] / summary["batches"] * 1e6,
            summary["postgres_cpu_seconds"] / summary["batches"] * 1e6,
            watched["latencies"],
            ages,
            summary["batches"] / files,
            stored.size_bytes / summary["batches"],
            stored.inline / max(stored.files, 1),
        )

    async def _watched(self, topic: str, flags: list[str], first: str) -> tuple[dict[str, Any], list[float]]:
        reader = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "load.workloads.reader", str(self._agent.kafka_port), topic, str(PARTITIONS),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 28,
        )  # fmt: skip
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert await reader.stdout.readline() == b"ready\n"
        summary = await self._load([*flags, "--first-producer-id", first])
        await asyncio.sleep(1)
        reader.stdin.close()
        output, _ = await reader.communicate()
        ages: list[float] = json.loads(output)
        if len(ages) != summary["batches"]:
            raise RuntimeError(f"the reader saw {len(ages)} of {summary['batches']} records")
        return summary, ages

    async def _load(self, flags: list[str]) -> dict[str, Any]:
        """Run the producers; their summary, and what agent and Postgres spent meanwhile."""
        before, started = read_cost(self._settings.metastore_url), time.process_time()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "load.workloads.producer", "--port", str(self._agent.kafka_port), *flags,
            stdout=asyncio.subprocess.PIPE, limit=1 << 28,
        )  # fmt: skip
        output, _ = await process.communicate()
        spent = {
            "agent_cpu_seconds": time.process_time() - started,
            "postgres_cpu_seconds": read_cost(self._settings.metastore_url).since(before).cpu_seconds,
        }
        summary: dict[str, Any] = json.loads(output) | spent
        if summary["errors"]:
            raise RuntimeError(f"the agent answered with errors: {summary['errors']}")
        return summary

    async def _create(self, topic: str) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{self._agent.kafka_port}")
        await admin.start()
        try:
            configs = {LOW_LATENCY_ENABLE: "true"} if self._low_latency else {}
            await admin.create_topics([NewTopic(topic, PARTITIONS, 1, topic_configs=configs)])
        finally:
            await admin.close()

    def _stored(self) -> Stored:
        """Return what of all flushed files is known."""
        with psycopg.connect(self._settings.metastore_url) as connection:
            row = connection.execute(_STORED).fetchone()
        assert row is not None
        return Stored(*map(int, row))


def _later(first: int, times: int) -> str:
    """Ids that no earlier load has used."""
    return str(first + times * 10_000 if first >= 0 else -1)


async def run(url: str, s3: S3Server, cluster_id: str, args: argparse.Namespace) -> dict[str, list[Result]]:
    """All modes in each round, each with a separate agent; results by mode, then by round."""
    results: dict[str, list[Result]] = {mode.name: [] for mode in MODES}
    settings = Settings(
        metastore_url=url,
        bucket=f"s3://{BUCKET}/hostile",
        s3_endpoint=f"http://127.0.0.1:{s3.port}",
        s3_region="us-east-1",
        s3_path_style=True,
        listeners="PLAINTEXT://127.0.0.1:0",
        http_port=0,
        linger_ms=args.linger_ms,
    )
    await format_bucket(settings, cluster_id)
    for number in range(args.rounds):
        first = number % len(MODES)
        for mode in (*MODES[first:], *MODES[:first]):
            topic = f"hostile-{number}-{MODES.index(mode)}"
            merging = msgspec.structs.replace(settings, ingest_merge_max_bytes=mode.merge_max_bytes)
            async with Hostile(merging, low_latency=args.low_latency) as hostile:
                result = await hostile.measure(mode, topic, args.producers, args.rate, args.seconds)
            results[mode.name].append(result)
            _print_result(mode, result)
    return results


def _print_result(mode: Mode, result: Result) -> None:
    print(
        f"{mode.name:16} ack p50/p99 {_ms(result.acks, 50)}/{_ms(result.acks, 99)} ms"
        f"  end to end {_ms(result.ages, 50)}/{_ms(result.ages, 99)} ms"
        f"  agent {result.agent_us:5.1f} µs/batch  postgres {result.postgres_us:4.1f} µs/batch"
        f"  {result.batches_per_file / PARTITIONS:4.0f} batches per partition and file"
        f"  {result.stored_bytes_per_batch:4.0f} bytes/batch  {result.inline_share:.0%} of the files inline"
        f"  load average {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def print_bars(results: dict[str, list[Result]]) -> None:
    """Each bar: what was found, what was wanted. CPU is the median round's."""
    idempotent, plain, merged = (results[mode.name] for mode in MODES)
    for mode in MODES:
        agent, postgres = (
            statistics.median(getattr(r, w) for r in results[mode.name]) for w in ("agent_us", "postgres_us")
        )
        print(f"median of {mode.name:16} agent {agent:5.1f} µs/batch  postgres {postgres:4.1f} µs/batch")
    age = percentile([age for result in idempotent for age in result.ages], 99)
    agent_us = statistics.median(result.agent_us for result in idempotent)
    both, told = _ratio(idempotent, plain, "cpu_us")
    _bar("end to end p99, idempotent", f"{age * 1000:.0f} ms", f"{AGE_P99_BAR_S * 1000:.0f} ms", age <= AGE_P99_BAR_S)
    _bar(
        "agent CPU per idempotent batch",
        f"{agent_us:.1f} µs",
        f"{AGENT_CPU_BAR_US:.0f} µs",
        agent_us <= AGENT_CPU_BAR_US,
    )
    _bar("CPU idempotent / plain unmerged", told, f"{RATIO_BAR}", both <= RATIO_BAR)
    print(f"idempotent / plain unmerged, agent alone: {_ratio(idempotent, plain, 'agent_us')[1]}")
    for what in ("agent_us", "postgres_us", "stored_bytes_per_batch"):
        print(f"merged / unmerged, {what}: {_ratio(merged, plain, what)[1]}")


def _ratio(these: list[Result], those: list[Result], what: str) -> tuple[float, str]:
    """`what` of these over those: the median round's, and how to say it."""
    ratios: list[float] = [getattr(this, what) / getattr(that, what) for this, that in zip(these, those, strict=True)]
    median = statistics.median(ratios)
    return median, f"{median:.2f} (rounds {' '.join(f'{ratio:.2f}' for ratio in ratios)})"


def _bar(what: str, found: str, wanted: str, met: bool) -> None:
    print(f"{'met ' if met else 'MISS'} {what}: {found} (bar {wanted})")


def _ms(values: list[float], percent: float) -> str:
    return f"{percentile(values, percent) * 1000:.0f}"


@contextmanager
def _servers() -> Iterator[tuple[str, str, S3Server]]:
    with tempfile.TemporaryDirectory(prefix="headrace-hostile-", ignore_cleanup_errors=True) as place:
        directory = Path(place)
        directory.chmod(0o711)  # started by root, Postgres runs as another user and must get through
        with EmbeddedPostgres(directory / "postgres") as url, S3Server(directory) as s3:
            yield url, migrate(url).cluster_id, s3


def main() -> None:
    """Run all three modes in each round and print the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rounds", type=int, default=3, help="about 75 s each; by three, so that each load is first as often"
    )
    parser.add_argument("--seconds", type=float, default=8, help="of each load")
    parser.add_argument("--producers", type=int, default=240)
    parser.add_argument("--rate", type=float, default=500, help="requests per second, one batch per partition in each")
    parser.add_argument("--linger-ms", type=int, default=100)
    parser.add_argument("--low-latency", action="store_true", help="topics with low.latency.enable")
    args = parser.parse_args()
    os.environ.update(CREDENTIALS)
    print(machine_state(), flush=True)
    with _servers() as (url, cluster_id, s3):
        print_bars(asyncio.run(run(url, s3, cluster_id, args)))


if __name__ == "__main__":
    main()
