"""What compaction costs and saves: `python -m load.bench_compaction`.

Starts a Postgres of its own and a bucket in a directory; commits L0 files of many small batches, then
merges them level by level as a worker would, in this process. CPU is this process's, all threads; a GB
is 10^9 bytes read. A replay reads one partition from its beginning, before and after; the bucket is a local
directory, so look at its GETs: in S3 each is some 20 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from compactor.compact import Compactor
from compactor.lease import Lease
from compactor.merge import MergeLimits
from compactor.metrics import CompactionMetrics
from compactor.plan import CompactionJob, encode
from config.settings import Settings
from metastore.jobs import NewJob
from metastore.postgres.embedded import EmbeddedPostgres
from metastore.postgres.migrate import migrate
from metastore.postgres.store import PostgresMetastore
from metastore.values import AgentRegistration, ExtentQuery, FileCommit, NewTopic, StagedBatch
from storage.clock import SystemClock
from storage.errors import InvalidError
from storage.file_id import new_file_id, object_key
from storage.objects.directory import DirectoryStore
from storage.objects.store import ByteRange
from storage.records.codec import Record, encode_batch
from storage.records.compression import Codec
from storage.records.header import read_header
from storage.segment.writer import SegmentWriter

PARTITIONS = 20
VALUE_BYTES = 100
FILES_PER_JOB = 64
RESPONSE_BYTES = 1024 * 1024


class CountingStore(DirectoryStore):
    """Counts requests."""

    gets = puts = 0

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        self.gets += 1
        return await super().get(key, byte_range)


class Bench:
    """One cluster, one topic."""

    def __init__(self, metastore: PostgresMetastore, directory: Path, codec: Codec) -> None:
        self.metastore, self.codec = metastore, codec
        self.clock, self.rng = SystemClock(), random.Random(1)
        self.store = CountingStore(directory, self.clock)
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
        self.files: list[uuid.UUID] = []

    async def fill(self, files: int, records_per_batch: int, batches: int) -> int:
        """Flush and commit; the bytes of all batches."""
        agent = await self.metastore.register_agent(AgentRegistration(None, uuid.uuid4(), "bench", 1, None))
        head = await self.metastore.metadata_head()
        await self.metastore.heartbeat(*agent, metadata_offset=head, want_fence=False, session_timeout_ms=60_000)
        topic = NewTopic("bench", uuid.uuid4(), PARTITIONS, {})
        assert await self.metastore.create_topics(await self.metastore.metadata_head(), [topic])
        number = (await self.metastore.load_image()).topics_by_name["bench"].topic_number
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
            await self.metastore.commit_files(*agent, [FileCommit(file_id, len(body), staged)])
            self.files.append(file_id)
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
            await self.metastore.enqueue_jobs([job])
            claimed = await self.metastore.claim_job("bench", ["compact"], 600_000)
            assert claimed is not None
            lease = Lease(self.metastore, claimed, self.clock, claimed_at=self.clock.monotonic(), lease_ms=600_000)
            await self.worker.handle(claimed, lease)
            await self.metastore.finish_job(claimed.token)
        return time.process_time() - cpu, time.perf_counter() - began

    async def replay(self) -> str:
        """Read one partition from its beginning as Fetch does, a response of 1 MiB at a time: what it takes."""
        self.store.gets = questions = size = offset = 0
        began = time.perf_counter()
        while True:
            (found,) = await self.metastore.find_extents([ExtentQuery(self.keys[0], offset, RESPONSE_BYTES)])
            questions += 1
            if not found.extents:
                break
            ranges = [(e.file_id, ByteRange(e.position, e.length)) for e in found.extents]
            for body in await asyncio.gather(*(self.store.get(object_key(file_id), r) for file_id, r in ranges)):
                size += len(body)
            offset = found.extents[-1].last_offset + 1
        elapsed = time.perf_counter() - began
        return f"replay: {self.store.gets:>4} GETs {questions:>3} look-ups {size / 1e6 / elapsed:>5.0f} MB/s"

    async def state(self) -> tuple[list[uuid.UUID], int, int]:
        """(live files, extents, live bytes)."""
        found = await self.metastore.find_extents([ExtentQuery(key, 0, 1 << 50) for key in self.keys])
        extents = [extent for partition in found for extent in partition.extents]
        return sorted({e.file_id for e in extents}), len(extents), sum(e.length for e in extents)


async def run(url: str, settings: Settings, directory: Path, args: argparse.Namespace, codec: Codec) -> None:
    """One codec, from L0 to L2."""
    metastore = await PostgresMetastore.open(url, settings)
    try:
        bench = Bench(metastore, directory, codec)
        read = await bench.fill(args.files, args.records, args.batches)
        before = await bench.state()
        print(f"\n{codec.name.lower()}: {read / 1e6:.0f} MB in {len(before[0])} files, {args.records} records a batch")
        replay = await bench.replay()
        print(f"  level 0  {len(before[0]):>6} files {before[1]:>8,} rows {before[2] / 1e6:>8.1f} MB   {replay}")
        for level in (1, 2):
            files, _, live = await bench.state()
            bench.store.gets = 0
            cpu, elapsed = await bench.merge(level, files)
            after = await bench.state()
            print(
                f"  level {level}  {len(after[0]):>6} files {after[1]:>8,} rows {after[2] / 1e6:>8.1f} MB   "
                f"{cpu / (live / 1e9):>6.1f} CPU s/GB {live / 1e6 / elapsed:>6.0f} MB/s {bench.store.gets:>5} GETs   ",
                end="",
            )
            print(await bench.replay(), flush=True)
    finally:
        await metastore.close()


def main() -> None:
    """Print it for no codec and for lz4."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--records", type=int, default=10, help="per batch")
    parser.add_argument("--batches", type=int, default=20, help="per partition and file")
    args = parser.parse_args()
    if args.files < 1:
        raise InvalidError("nothing to merge")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        place = Path(name)
        place.chmod(0o711)
        for codec in (Codec.NONE, Codec.LZ4):
            with EmbeddedPostgres(place / f"postgres-{codec}") as url:
                migrate(url)
                (place / f"bucket-{codec}").mkdir()
                asyncio.run(run(url, Settings(metastore_pool_size=4), place / f"bucket-{codec}", args, codec))


if __name__ == "__main__":
    main()
