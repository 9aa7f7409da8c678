"""Compaction on a real Postgres, with a bucket in memory or another one: helpers of its tests.

Fault model: `FaultyBucket` loses the answer of a put, fails or hides objects on demand; nothing else here
misbehaves by itself. Records are read back through the real Fetch handler of an agent that knows nothing.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

from prometheus_client import CollectorRegistry

from headrace.agent.fetch.service import FetchService
from headrace.compactor.compact import CompactionMetrics, Compactor
from headrace.compactor.merge import MergeLimits
from headrace.compactor.plan import CompactionJob, encode
from headrace.jobs.kinds import COMPACT
from headrace.jobs.lease import Lease
from headrace.jobs.runner import JobHandler
from headrace.metastore.api.jobs import Job
from headrace.metastore.api.read import Extent, ExtentQuery
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.objects.store import ObjectStore
from headrace.storage.records.codec import Record, decode_records
from headrace.storage.records.header import read_header
from tests.agent.fetch.fetch_world import split_sent
from tests.agent.fetch.test_postgres import PostgresWorld
from tests.metastore.sessions import claim, rows

LEASE_MS = 60_000


class CompactionWorld(PostgresWorld):
    """An agent, topics and files; `records` is what any consumer sees."""

    def __init__(self, metastore: PostgresMetastore, url: str, seed: int = 0) -> None:
        super().__init__(metastore)
        self.url = url
        self.rng = random.Random(seed)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, metastore: PostgresMetastore, url: str, seed: int = 0, store: ObjectStore | None = None
    ) -> AsyncIterator[Self]:
        """A world with an agent that serves, until the block ends. `store`: a bucket that is not in memory."""
        world = cls(metastore, url, seed)
        if store is not None:
            world.store = store  # type: ignore[assignment]
            world.service = world.new_service()
        await world.begin()
        yield world
        await world.service.close()
        await world.store.close()

    async def extents(self, *keys: int) -> list[Extent]:
        """Return what the metastore says of these partitions, whole."""
        found = await self.postgres.index.find_extents([ExtentQuery(key, 0, 1 << 40) for key in keys])
        return [extent for partition in found for extent in partition.extents]

    async def batches(self, key: int, offset: int = 0) -> list[bytes]:
        """Every batch from `offset` on, through Fetch, by an agent that was just started."""
        service: FetchService = self.new_service(CollectorRegistry())
        await service.start()
        got: list[bytes] = []
        while True:
            result = await self.request_fetch({key: offset}, service=service, partition_max_bytes=20_000)
            assert result.code(key) == 0, result.code(key)
            sent = split_sent(result.records(key))
            if not sent:
                assert offset >= result.partitions[key].high_watermark
                await service.close()
                return got
            got += sent
            header = read_header(sent[-1])
            offset = header.base_offset + header.last_offset_delta + 1

    async def records(self, key: int, offset: int = 0) -> list[tuple[bool, int, Record]]:
        """(is log append time, leader epoch, record) of every record from `offset` on."""
        found = []
        for batch in await self.batches(key, offset):
            header = read_header(batch)
            found += [
                (header.is_log_append_time, header.leader_epoch, record) for record in decode_records(memoryview(batch))
            ]
        return [item for item in found if item[2].offset >= offset]

    async def file_rows(self) -> dict[uuid.UUID, dict[str, Any]]:
        """segment_files as it is."""
        names = ("file_id", "state", "level", "size", "body_bytes", "live_bytes", "dead_at")
        async with self.postgres.pool.connection() as connection:
            found = await rows(connection, f"SELECT {', '.join(names)} FROM segment_files")
        return {row[0]: dict(zip(names, row, strict=True)) for row in found}

    async def live_files(self, level: int | None = None) -> list[uuid.UUID]:
        """Files that some extent names, oldest first."""
        return sorted(
            file_id
            for file_id, row in (await self.file_rows()).items()
            if row["state"] == 0 and row["dead_at"] is None and level in (None, row["level"])
        )

    async def check_accounts(self) -> None:
        """Live bytes, dead files and partition sizes are what the extents say; no offset twice or missing."""
        async with self.postgres.pool.connection() as connection:
            wrong = await rows(
                connection,
                "SELECT f.file_id, f.live_bytes, sum(e.length), f.dead_at FROM segment_files f"
                " LEFT JOIN extents e USING (file_id) WHERE f.state = 0 GROUP BY f.file_id"
                " HAVING f.live_bytes <> coalesce(sum(e.length), 0)"
                " OR (f.dead_at IS NULL) <> (count(e.file_id) > 0) OR f.body_bytes < f.live_bytes",
            )
            assert not wrong, wrong
            wrong = await rows(
                connection,
                "SELECT p.partition_key, h.appended_bytes, p.removed_bytes, sum(e.length) FROM partitions p"
                " JOIN partition_heads h USING (partition_key) LEFT JOIN extents e USING (partition_key)"
                " GROUP BY 1, 2, 3 HAVING h.appended_bytes - p.removed_bytes <> coalesce(sum(e.length), 0)",
            )
            assert not wrong, wrong
            wrong = await rows(
                connection,
                "SELECT * FROM (SELECT e.partition_key, e.base_offset, lag(e.last_offset) OVER w AS before"
                " FROM extents e JOIN partitions USING (partition_key)"
                " WINDOW w AS (PARTITION BY e.partition_key ORDER BY e.last_offset)) AS e"
                " WHERE before IS NOT NULL AND base_offset <> before + 1",
            )
            assert not wrong, wrong

    async def claim(self, file_ids: Sequence[uuid.UUID], level: int, *, lease_ms: int = LEASE_MS) -> Job:
        """A new job over these files, leased."""
        job = COMPACT.once(str(uuid.uuid4()), encode(CompactionJob(tuple(file_ids), level)))
        await self.postgres.jobs.enqueue_jobs([job])
        return await self.claim_next(lease_ms=lease_ms)

    async def claim_next(self, *, lease_ms: int = LEASE_MS) -> Job:
        """The next job that is due, regardless of its previous holder."""
        claimed = await self.postgres.jobs.claim_job("test", [COMPACT.name], lease_ms)
        assert claimed is not None
        return claimed

    def compactor(self, **over: Any) -> Compactor:
        """A worker; `store`, `metastore`, `clock` and limits may be others than the world's."""
        limits = MergeLimits(**{name: over.pop(name) for name in list(over) if name.endswith("_bytes")})
        parts = {"store": self.store, "metastore": self.postgres, "clock": self.clock, **over}
        self.compaction_registry = CollectorRegistry()
        return Compactor(
            **parts,
            commit_shards=self.postgres.commit_shards,
            limits=limits,
            rng=self.rng,
            metrics=CompactionMetrics(self.compaction_registry),
        )

    def lease(self, job: Job, *, lease_ms: int = LEASE_MS) -> Lease:
        """The lease of a job that was claimed just now."""
        return Lease(self.postgres.jobs, job, self.clock, claimed_at=self.clock.monotonic(), lease_ms=lease_ms)

    async def run_job(self, kind: str, handler: JobHandler) -> None:
        """A job of that kind, from its claim to its end."""
        job = await claim(self.postgres, kind)
        await handler(job, self.lease(job))
        await self.postgres.jobs.finish_job(job.token)

    async def run(self, job: Job, compactor: Compactor | None = None) -> None:
        """Carry the job out under its lease, and end it."""
        await (compactor or self.compactor()).handle(job, self.lease(job))
        await self.postgres.jobs.finish_job(job.token)

    async def compact(self, level: int, **limits: Any) -> None:
        """Merge all files below `level` into files of it."""
        files = [f for f in await self.live_files() if (await self.file_rows())[f]["level"] < max(level, 1)]
        await self.run(await self.claim(files, level), self.compactor(**limits))

    def counted(self, name: str, **labels: str) -> float:
        """A sample of the last compactor made."""
        return self.compaction_registry.get_sample_value(f"headrace_compaction_{name}", labels) or 0.0
