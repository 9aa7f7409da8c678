"""What compaction costs and saves: `python -m load compaction`.

Starts a separate Postgres and a bucket in a directory; commits L0 files of many small batches, then
merges them level by level as a worker would, in this process. CPU is this process's, all threads; a GB
is 10^9 bytes read. Before the first merge and after each, a Kafka client reads the whole topic from its
beginning (load/workloads/replay.py): once from the directory, once with `--get-ms` added to each GET, as S3 would take.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from headrace.compactor.compact import CompactionMetrics, Compactor
from headrace.compactor.merge import MergeLimits
from headrace.compactor.plan import CompactionJob, encode
from headrace.config.cluster_values import proposed
from headrace.config.settings import Settings
from headrace.jobs.lease import Lease
from headrace.metastore.api.agents import AgentRegistration
from headrace.metastore.api.commit import FileCommit, StagedBatch
from headrace.metastore.api.jobs import NewJob
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.collector_tuning import tune_collector
from headrace.storage.errors import InvalidError
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import read_header
from headrace.storage.segment.writer import SegmentWriter
from load.harness import Benchmark, BenchmarkRun
from load.workloads.counting_store import CountingStore
from load.workloads.replay import Replay, replay

PARTITIONS = 20
FILES_PER_JOB = 64
TOPIC = "bench"


class CompactionBench:
    """One cluster, one topic."""

    def __init__(self, url: str, metastore: PostgresMetastore, directory: Path, codec: Codec) -> None:
        self.url, self.metastore, self.codec = url, metastore, codec
        self.clock, self.rng = SystemClock(), random.Random(1)
        self.store = CountingStore(DirectoryStore(directory, self.clock), self.clock)
        self.registry = CollectorRegistry()
        self.worker = Compactor(
            self.store,
            metastore,
            metastore.commit_shards,
            MergeLimits(),
            self.clock,
            self.rng,
            CompactionMetrics(self.registry),
        )

    async def fill(self, files: int, records_per_batch: int, batches: int) -> int:
        """Flush and commit; the bytes of all batches."""
        agent = await self.metastore.cluster.register_agent(AgentRegistration(None, uuid.uuid4(), "bench", 1, None))
        head = await self.metastore.cluster.metadata_head()
        await self.metastore.cluster.heartbeat(
            *agent, metadata_offset=head, want_fence=False, session_timeout_ms=60_000
        )
        topic = NewTopic(TOPIC, uuid.uuid4(), PARTITIONS, {})
        assert await self.metastore.topics.create_topics(await self.metastore.cluster.metadata_head(), [topic])
        number = (await load_image(self.metastore.cluster)).topics_by_name[TOPIC].topic_number
        self.keys = [number << 24 | index for index in range(PARTITIONS)]
        total = 0
        for _ in range(files):
            writer, staged = SegmentWriter(), []
            for index, key in enumerate(self.keys):
                for _ in range(batches):
                    data = self._batch(records_per_batch)
                    position = writer.add(topic.topic_id, index, key, memoryview(data), read_header(data))
                    staged.append(StagedBatch(key, position, len(data), records_per_batch, 1_000))
                    total += len(data)
            body = writer.finish()
            file_id = new_file_id(self.clock.wall_ms(), self.rng)
            await self.store.put(object_key(file_id), body)
            await self.metastore.commits.commit_files(*agent, [FileCommit(file_id, len(body), staged)])
        await self.metastore.cluster.unregister_agent(*agent)  # else a replay's agent would ask it for its cache
        return total

    def _batch(self, count: int) -> bytes:
        """Values as logs have them: half of each is the same words, half is noise."""
        values = [
            (b"level=info path=/api/v1/orders status=200 ms=%d " % n) + self.rng.randbytes(50) for n in range(count)
        ]
        return encode_batch(
            [Record(n, 1_000 + n, b"key", v) for n, v in enumerate(values)], codec=self.codec, base_offset=0
        )

    async def merge(self, level: int, file_ids: Sequence[uuid.UUID]) -> tuple[float, float]:
        """(CPU seconds, elapsed seconds) of the jobs that merge these files."""
        cpu, began = time.process_time(), time.perf_counter()
        for start in range(0, len(file_ids), FILES_PER_JOB):
            job = NewJob(
                "compact", str(start), encode(CompactionJob(tuple(file_ids[start : start + FILES_PER_JOB]), level))
            )
            await self.metastore.jobs.enqueue_jobs([job])
            claimed = await self.metastore.jobs.claim_job("bench", ["compact"], 600_000)
            assert claimed is not None
            lease = Lease(self.metastore.jobs, claimed, self.clock, claimed_at=self.clock.monotonic(), lease_ms=600_000)
            await self.worker.handle(claimed, lease)
            await self.metastore.jobs.finish_job(claimed.token)
        return time.process_time() - cpu, time.perf_counter() - began

    async def replay(self, get_ms: float = 0.0) -> Replay:
        """The whole topic, each GET this much slower."""
        self.store.get_seconds = get_ms / 1000
        found = await replay(self.url, self.store, self.clock, TOPIC, PARTITIONS)
        self.store.get_seconds = 0.0
        return found

    async def replays(self, get_ms: float) -> dict[str, float]:
        """Both of them: what they take."""
        quick, slow = await self.replay(), await self.replay(get_ms)
        return {
            "MB/s of a replay": quick.mb_per_s,
            f"MB/s at {get_ms:g} ms a GET": slow.mb_per_s,
            "GETs of it": quick.gets,
            "KB each": quick.got_bytes / max(quick.gets, 1) / 1000,
        }

    async def state(self) -> tuple[list[uuid.UUID], int, int]:
        """(live files, extents, live bytes)."""
        found = await self.metastore.index.find_extents([ExtentQuery(key, 0, 1 << 50) for key in self.keys])
        extents = [extent for partition in found for extent in partition.extents]
        return sorted({e.source for e in extents}), len(extents), sum(e.length for e in extents)


async def merge_levels(run: BenchmarkRun, url: str, settings: Settings, directory: Path, codec: Codec) -> None:
    """One codec, from L0 to L2."""
    args = run.args
    metastore = await PostgresMetastore.open(url, settings)
    try:
        bench = CompactionBench(url, metastore, directory, codec)
        read = await bench.fill(args.files, args.records, args.batches)
        before = await bench.state()
        run.note(f"{codec.name.lower()}: {read / 1e6:.0f} MB in {len(before[0])} files, {args.records} records a batch")
        figures = {"files": len(before[0]), "rows": before[1], "MB": before[2] / 1e6}
        run.row("level 0", figures | await bench.replays(args.get_ms))
        for level in (1, 2):
            files, _, live = await bench.state()
            bench.store.reset()
            cpu, elapsed = await bench.merge(level, files)
            after, gets = await bench.state(), bench.store.gets
            figures = {"files": len(after[0]), "rows": after[1], "MB": after[2] / 1e6}
            merging = {"CPU s/GB": cpu / (live / 1e9), "MB/s": live / 1e6 / elapsed, "GETs": gets}
            run.row(f"level {level}", figures | merging | await bench.replays(args.get_ms))
    finally:
        await metastore.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--records", type=int, default=10, help="per batch")
    parser.add_argument("--batches", type=int, default=20, help="per partition and file")
    parser.add_argument("--get-ms", type=float, default=20, help="of the second replay")


def benchmark(run: BenchmarkRun) -> None:
    tune_collector()
    if run.args.files < 1:
        raise InvalidError("nothing to merge")
    for codec in (Codec.NONE, Codec.LZ4):
        with run.postgres(values=proposed(Settings())) as url:
            settings = Settings(metastore_pool_size=4)
            asyncio.run(merge_levels(run, url, settings, run.folder("bucket"), codec))


BENCHMARK = Benchmark("merges, level by level: their CPU and requests, and what readers save", benchmark, add_arguments)
