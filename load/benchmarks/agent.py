"""What an agent costs and how long it takes: CPU per GB, acknowledgement over its floor, five in flight.

`python -m load agent`. The agent runs in this process, with a real Postgres in another; the load
comes from another process (load.workloads.raw_producer) and the bucket is a sink that swallows PUTs
(load.workloads.http_sink), so this process's CPU is the agent's: the client's part of PUTs and commits included,
Postgres not. CPU is measured under a load that never lets the agent rest, after a warm-up of the same
shape, and with the collector tuned as the command tunes it. The floor of an acknowledgement is what its
request waited in the buffer, plus its file's PUT, plus its commit, each measured inside.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from headrace.agent.produce.files import FileTrace
from headrace.cli.bench.orders import percentile
from headrace.cli.process.open_process import open_agent
from headrace.config.settings import Settings
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.collector_tuning import tune_collector
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange, ObjectInfo, ObjectStore, StoreDecorator
from load.benchmarks.store import sink
from load.harness import Benchmark, BenchmarkRun

PARTITIONS = 12
SATURATING: dict[str, Any] = {"connections": 16, "inflight": 60}
"""Enough for requests to wait for the agent and not the other way round, while a file lingers and is stored."""
TOPIC = "bench"


class SegmentsToSink(StoreDecorator):
    """Segment files go to the sink; the few objects that an agent reads at its start are in memory."""

    def __init__(self, inner: ObjectStore, memory: MemoryStore) -> None:
        super().__init__(inner)
        self._memory = memory

    def _store_of(self, key: str) -> ObjectStore:
        return self._inner if key.endswith(".segment") else self._memory

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        return await self._store_of(key).put(key, body, if_absent=if_absent)

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        return await self._store_of(key).get(key, byte_range)

    async def head(self, key: str) -> ObjectInfo:
        return await self._store_of(key).head(key)

    def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._memory.list_objects(prefix, start_after=start_after)


class SinkCluster(NamedTuple):
    """A metastore, a sink and what is in memory instead."""

    metastore_url: str
    bucket_url: str
    memory: MemoryStore


class AgentBench:
    """One agent; `traces` collects the files that it settled."""

    def __init__(self, cluster: SinkCluster, settings: Settings) -> None:
        self.settings = settings
        self._decorate = partial(SegmentsToSink, memory=cluster.memory)
        self.traces: list[FileTrace] = []

    async def __aenter__(self) -> AgentBench:
        metastore = await PostgresMetastore.open(self.settings.metastore_url, self.settings)
        topic_id = uuid.uuid4()
        while not await metastore.topics.create_topics(
            await metastore.cluster.metadata_head(), [NewTopic(f"{TOPIC}-{topic_id}", topic_id, PARTITIONS, {})]
        ):
            continue
        self._topic = f"{TOPIC}-{topic_id}"
        self._first_producer_id = (await metastore.commits.allocate_producer_ids(100))[0]
        await metastore.close()
        self._process, self._agent = await open_agent(
            self.settings, self.traces.append, CollectorRegistry(), self._decorate
        )
        await self._process.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._process.stop()

    async def load(self, *, idempotent: bool = False, **flags: object) -> dict[str, Any]:
        """Run the generator; its summary, with `cpu_seconds` of this process while it ran."""
        del self.traces[:]
        if idempotent:
            flags["first_producer_id"] = self._first_producer_id
            self._first_producer_id += 50
        arguments = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        started = time.process_time()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "load.workloads.raw_producer", "--port", str(self._agent.kafka_port),
            "--topic", self._topic, "--partitions", str(PARTITIONS), *arguments, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, _ = await process.communicate()
        spent = time.process_time() - started
        summary: dict[str, Any] = json.loads(output)
        if summary["errors"]:
            raise RuntimeError(f"the agent answered with errors: {summary['errors']}")
        return summary | {"cpu_seconds": spent}

    def floors(self) -> list[float]:
        """Return the floors per request: wait in the buffer + PUT + commit, in seconds."""
        return [
            (trace.closed_at - appended_at) + (trace.stored_at - trace.put_started_at) + _commit_seconds(trace)
            for trace in self.traces
            for appended_at in trace.appended_at
        ]


def _microseconds(result: dict[str, Any]) -> float:
    """CPU per request."""
    return float(result["cpu_seconds"] / result["requests"] * 1e6)


def _commit_seconds(trace: FileTrace) -> float:
    return trace.settled_at - trace.commit_started_at


async def bench_cpu(run: BenchmarkRun, cluster: SinkCluster) -> None:
    """CPU seconds per 10^9 bytes produced."""
    async with AgentBench(cluster, _settings(cluster, linger_ms=100)) as bench:
        tune_collector()
        for request_bytes in (64 * 1024, 16 * 1024):
            await bench.load(request_bytes=request_bytes, seconds=2, **SATURATING)
            result = await bench.load(request_bytes=request_bytes, seconds=run.args.seconds, **SATURATING)
            gigabytes = result["bytes"] / 1e9
            scheme = cluster.bucket_url.partition(":")[0]
            name = f"CPU, {scheme}, requests of {request_bytes // 1024} KiB"
            figures = {"s/GB": result["cpu_seconds"] / gigabytes, "us a request": _microseconds(result)}
            speed = gigabytes / result["seconds"] * 1000
            run.row(name, figures | {"MB/s": speed, "files": len(bench.traces)})


async def bench_latency(run: BenchmarkRun, cluster: SinkCluster) -> None:
    """Acknowledgement over its floor at moderate load."""
    for linger_ms in (25, 100):
        async with AgentBench(cluster, _settings(cluster, linger_ms=linger_ms)) as bench:
            await bench.load(request_bytes=16 * 1024, seconds=1, rate=200)
            result = await bench.load(
                request_bytes=16 * 1024, seconds=run.args.seconds, rate=400, connections=4, inflight=20
            )
            floors = bench.floors()
            for percent in (50, 99):
                seen, floor = percentile(result["latencies"], percent), percentile(floors, percent)
                figures = {"ms": seen * 1000, "ms floor": floor * 1000, "of the floor": seen / floor}
                run.row(f"acknowledgement, linger {linger_ms} ms, p{percent}", figures)


async def bench_five_in_flight(run: BenchmarkRun, cluster: SinkCluster) -> None:
    """One idempotent producer with 5 requests in flight, against 5 / (mean wait + PUT + commit)."""
    async with AgentBench(cluster, _settings(cluster, linger_ms=25)) as bench:
        await bench.load(request_bytes=1_024, seconds=1, idempotent=True)
        result = await bench.load(
            request_bytes=1_024, seconds=run.args.seconds, connections=1, inflight=5, idempotent=True
        )
        rate, bound = result["requests"] / result["seconds"], 5 / statistics.mean(bench.floors())
        figures = {"requests/s": rate, "requests/s bound": bound, "of the bound": rate / bound}
        run.row("five in flight, 1 idempotent producer", figures)


def _settings(cluster: SinkCluster, *, linger_ms: int) -> Settings:
    return Settings(
        metastore_url=cluster.metastore_url,
        bucket="s3://bucket/bench",
        s3_endpoint=cluster.bucket_url,
        s3_region="us-east-1",
        s3_path_style=True,
        listeners="PLAINTEXT://127.0.0.1:0",
        http_port=0,
        linger_ms=linger_ms,
        cache_bytes=0,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--seconds", type=float, default=10, help="of each load")


def benchmark(run: BenchmarkRun) -> None:
    memory = MemoryStore(SystemClock())
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "bench")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "bench")
    with run.postgres() as url:
        asyncio.run(_begin_life(url, memory))
        for scheme in ("http", "https"):
            with sink(scheme, run.place) as bucket_url:
                asyncio.run(bench_cpu(run, SinkCluster(url, bucket_url, memory)))
        with sink("http", run.place) as bucket_url:
            asyncio.run(bench_latency(run, SinkCluster(url, bucket_url, memory)))
            asyncio.run(bench_five_in_flight(run, SinkCluster(url, bucket_url, memory)))


async def _begin_life(url: str, memory: MemoryStore) -> None:
    metastore = await PostgresMetastore.open(url, Settings(metastore_pool_size=2))
    await LifeKeeper(metastore.life, memory, SystemClock(), random.Random(1)).begin_anew("benchmark")
    await metastore.close()


BENCHMARK = Benchmark(
    "a whole agent: CPU per GB and request, acknowledgement over its floor, five in flight", benchmark, add_arguments
)
