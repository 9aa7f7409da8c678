"""What the audit trail of remote segments costs in Postgres and in a Fetch: `python -m load audit`.

Starts a separate Postgres. How many records a day the trail gets is computed by the compaction policy over simulated
arrivals (compaction_simulation.py): 1 GB/s over 1,000 partitions. Rows are made by SQL, none by compaction: an index
row for each object of the retention's 90 days, the due rows of objects that were joined in the last
file.delete.delay.ms, and the rows of events that come between two runs of the job `archive-audit`, plus what the job
leaves. Then the jobs `archive-audit-rows` run on those events, into a directory, in --workers processes, so the sizes
after it include what VACUUM has not given back; and a Fetch of each part is measured: its time, best and worst of
FETCHES, and the peak of its memory.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import time
import tracemalloc
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from headrace.agent.fetch.rendered_topics import AuditTopic, KnownEnds
from headrace.compactor.merge import MergeLimits
from headrace.compactor.planner import PolicyLimits
from headrace.compactor.segments import BLOCKS_PER_OBJECT, JOIN_RECORDS, AuditArchiveMetrics, AuditArchiver
from headrace.config.settings import Settings
from headrace.jobs.kinds import ARCHIVE_AUDIT_MS, ARCHIVE_AUDIT_ROWS
from headrace.jobs.lease import Lease
from headrace.metastore.api.segments import METADATA_PARTITIONS
from headrace.metastore.audit_trail import BLOCK_RECORDS
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.protocol.fetch_codec import FetchPartition
from headrace.storage.clock import SystemClock
from headrace.storage.objects.open import StoreOptions, open_store
from load.benchmarks import compaction_simulation
from load.benchmarks.commit import CommitBench, opened
from load.harness import Benchmark, BenchmarkRun

PARTITIONS = 1_000
FLUSHES_PER_SECOND, FLUSH_BYTES = 125, 8_000_000
SIMULATED_SECONDS = 360
DAYS = 90
FETCHES = 20
WAITING_RECORDS = BLOCK_RECORDS - 1
"""Waiting records per metadata partition: what a run of the job leaves."""
LEASE_MS = 600_000
SPAN = 1 << 33
"""Audit offsets of a metadata partition: of the made objects below it, of real records from it on."""
OBJECTS = """
INSERT INTO archived_audit (metadata_partition, last_offset, first_offset, records, newest_ms, bytes, index_bytes,
  epoch, due_at)
SELECT p, (n + 1) * 1000 - 1 - {shift}, n * 1000, {records}, n, 10000000, 2000, 100000 + n % 1000, {due}
  FROM generate_series(0, {partitions} - 1) AS p, generate_series(0, {objects} - 1) AS n
"""
EVENTS = """
INSERT INTO remote_segment_events (metadata_partition, audit_offset, log_offset, api_key, topic_id, partition_index,
  end_offset, epoch, state, cause, broker_id, event_ms, segment_id, file_id, job_id, start_offset, leader_epoch,
  max_timestamp, size)
SELECT p, {first} + n, {first} + n, CASE n % 4 WHEN 0 THEN 0 ELSE 1 END, md5((n % 20)::text || p)::uuid, n % 20,
       n * 1000 + 999, 1000000 + n / 80, n % 4, 0, 1, 1700000000000 + n, md5((n / 4)::text || p)::uuid,
       md5((n / 80)::text)::uuid, 5000000 + n / 80, CASE n % 4 WHEN 0 THEN n * 1000 END, CASE n % 4 WHEN 0 THEN 1 END,
       CASE n % 4 WHEN 0 THEN 1700000000000 + n END, CASE n % 4 WHEN 0 THEN 65000 END
  FROM generate_series(0, {rows} - 1) AS n, generate_series(0, {partitions} - 1) AS p
"""


class _Counting(compaction_simulation.Simulation):
    """How many segments merges make, by level."""

    def __init__(self) -> None:
        super().__init__(PolicyLimits(), MergeLimits(), PARTITIONS, random.Random(0))
        self.segments: Counter[int] = Counter()

    def _merge(self, inputs: list[compaction_simulation.SimulatedFile], level: int, now_s: float) -> None:
        before = set(self.files)
        super()._merge(inputs, level, now_s)
        self.segments[level] += sum(self.files[file_id].partitions for file_id in set(self.files) - before)


def records_per_day() -> int:
    """Two records per segment that is written, and two more once it is replaced or expires."""
    run, rng = _Counting(), random.Random(0)
    for now in range(0, SIMULATED_SECONDS, compaction_simulation.PLAN_SECONDS):
        for flush in range(FLUSHES_PER_SECOND * compaction_simulation.PLAN_SECONDS):
            size = round(FLUSH_BYTES * rng.uniform(0.5, 1.5))
            run.flush(now + flush / FLUSHES_PER_SECOND, size, size)
        run.plan(now + compaction_simulation.PLAN_SECONDS)
    return 4 * sum(run.segments.values()) * 86_400 // SIMULATED_SECONDS


async def make_rows(bench: CommitBench, per_day: int) -> None:
    """Everything that Postgres holds just before a run of the job."""
    part_day = per_day / METADATA_PARTITIONS
    delay_days = Settings().file_delete_delay_ms / 86_400_000
    small = BLOCKS_PER_OBJECT * BLOCK_RECORDS
    unjoined_days = 1 / 24
    await bench.execute(
        OBJECTS.format(
            shift=0,
            records=JOIN_RECORDS,
            due="NULL",
            partitions=METADATA_PARTITIONS,
            objects=round(part_day * DAYS / JOIN_RECORDS + part_day * unjoined_days / small),
        )
    )
    due = round(part_day * delay_days / small)
    await bench.execute(
        OBJECTS.format(shift=1, records=small, due="now()", partitions=METADATA_PARTITIONS, objects=due)
    )
    rows = round(part_day * ARCHIVE_AUDIT_MS / 86_400_000) + WAITING_RECORDS
    await bench.execute(EVENTS.format(first=SPAN, rows=rows, partitions=METADATA_PARTITIONS))
    end = f"next_offset = {SPAN + rows}, next_audit_offset = {SPAN + rows}"
    await bench.execute(f"UPDATE remote_log_heads SET {end}, audit_start = 0")
    for table in ("archived_audit", "remote_segment_events"):
        await bench.execute(f"VACUUM ANALYZE {table}")


async def size_of(bench: CommitBench, table: str) -> tuple[int, int]:
    """Rows and bytes of a table."""
    ((rows, size),) = await bench.query(f"SELECT count(*), pg_total_relation_size('{table}') FROM {table}")
    return rows, size


async def tell_sizes(run: BenchmarkRun, bench: CommitBench, when: str) -> None:
    """Rows and bytes of both tables, indexes and free space included."""
    total = 0
    for table in ("archived_audit", "remote_segment_events"):
        rows, size = await size_of(bench, table)
        total += size
        run.row(f"{when}: {table}", {"rows": rows, "MiB": size / 2**20})
    run.row(f"{when}: together", {"GiB": total / 2**30})


async def archive(run: BenchmarkRun, bench: CommitBench, bucket: str, workers: int) -> None:
    """The jobs of all metadata partitions, in so many processes; the objects that could be joined are not there."""
    await bench.store.jobs.enqueue_jobs([ARCHIVE_AUDIT_ROWS.once(f"{part:02}") for part in range(METADATA_PARTITIONS)])
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_ready, range(workers)))
        began = time.perf_counter()
        loop = asyncio.get_running_loop()
        done = await asyncio.gather(*(loop.run_in_executor(pool, _work, bench.url, bucket) for _ in range(workers)))
        seconds = time.perf_counter() - began
    records, stored, cpu_seconds = map(sum, zip(*done, strict=True))
    figures = {"records": round(records), "s": seconds, "records/s": records / seconds, "B each": stored / records}
    run.row(f"archive, {workers} workers", figures | {"us of a worker's CPU each": cpu_seconds / records * 1e6})


def _ready(number: int) -> None:
    """Let each process of the pool import before the clock starts."""
    time.sleep(0.5)


def _work(url: str, bucket: str) -> tuple[float, float, float]:
    """A worker, until no job is left: its records, bytes, and CPU seconds."""
    return asyncio.run(_worked(url, bucket))


async def _worked(url: str, bucket: str) -> tuple[float, float, float]:
    began = time.process_time()
    clock, registry = SystemClock(), CollectorRegistry()
    metastore = await PostgresMetastore.open(url, Settings(metastore_pool_size=2))
    store = open_store(bucket, StoreOptions.of(Settings()), clock=clock, rng=random.Random(0))
    archiver = AuditArchiver(metastore, store, clock, random.Random(), AuditArchiveMetrics(registry))
    while (job := await metastore.jobs.claim_job("bench", [ARCHIVE_AUDIT_ROWS.name], LEASE_MS)) is not None:
        await archiver.archive_rows(
            job, Lease(metastore.jobs, job, clock, claimed_at=clock.monotonic(), lease_ms=LEASE_MS)
        )
        await metastore.jobs.finish_job(job.token)
    await store.close()
    await metastore.close()
    names = ("headrace_audit_trail_archived_records_total", "headrace_audit_trail_archived_bytes_total")
    records, stored = (registry.get_sample_value(name) or 0 for name in names)
    return records, stored, time.process_time() - began


async def fetch(run: BenchmarkRun, bench: CommitBench, store: Any, what: str, offset: int) -> None:
    """Fetches of one page, each through a new topic."""
    image: Any = SimpleNamespace(image=MetadataImage())
    topic = AuditTopic(bench.store.segment_logs, image, KnownEnds(bench.store.segment_logs, SystemClock()), store)
    times = []
    for number in range(FETCHES + 1):
        if number == FETCHES:
            tracemalloc.start()
        began = time.perf_counter()
        reply = await topic.fetch(FetchPartition(number % METADATA_PARTITIONS, offset, 1 << 20))
        times.append(time.perf_counter() - began)
        assert not reply.error_code
        assert reply.records
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    times = sorted(times[:FETCHES])
    size = sum(map(len, reply.records))
    figures = {"ms least": times[0] * 1000, "ms most": times[-1] * 1000, "KiB": size / 1024}
    run.row(f"fetch {what}", figures | {"MiB of memory, peak": peak / 2**20})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--share", type=float, default=1, help="make so much of the rows (1)")
    parser.add_argument("--workers", type=int, default=1, help="archive in so many processes (1)")


async def benchmark(run: BenchmarkRun) -> None:
    share, workers = run.args.share, run.args.workers
    per_day = records_per_day()
    figures = {"records a day": per_day, f"records in {DAYS} days": per_day * DAYS, "of them made": float(share)}
    run.row(f"1 GB/s over {PARTITIONS:,} partitions", figures)
    async with opened(run.folder("postgres"), 1) as bench:
        bucket = f"file://{run.place}/bucket"
        store = open_store(bucket, StoreOptions.of(Settings()), clock=SystemClock(), rng=random.Random(0))
        await make_rows(bench, round(per_day * share))
        await tell_sizes(run, bench, "before a run")
        await archive(run, bench, bucket, workers)
        await tell_sizes(run, bench, "after it")
        await fetch(run, bench, store, "from the bucket", SPAN + 1_500)
        ends = await bench.store.segment_logs.segment_log_ends()
        await fetch(run, bench, store, "from Postgres", ends[0].next_audit_offset - 1_000)
        await store.close()


BENCHMARK = Benchmark(
    "the audit trail of remote segments: its size in Postgres, the job that archives it, a Fetch of it",
    benchmark,
    add_arguments,
)
