"""A cluster with a manual clock: flushes, merges and deletions of an hour in less than a minute.

Place: under load/benchmarks/compaction_hour.py and load/benchmarks/purge_duplicates.py. Postgres is real; its clock,
wall_ms(), is replaced by a row that `advance` moves. So are the files, the commit, the plans, the merges, the swaps
and the janitor; the bucket is this process's memory, and counts. Only the loops around them are not there:
who calls decides when a plan is made and when the janitor comes by.
Invariant: nothing is estimated. A file was committed when the clock says so, a merged one too.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter, deque
from dataclasses import dataclass, field

import psycopg
from prometheus_client import CollectorRegistry

from headrace.compactor.audit import Audit, audit
from headrace.compactor.compact import CompactionMetrics, Compactor
from headrace.compactor.janitor import Janitor, JanitorMetrics
from headrace.compactor.merge import MergeLimits
from headrace.compactor.permit import Undecided
from headrace.compactor.planner import Planner, PolicyLimits
from headrace.config.settings import Settings
from headrace.jobs.kinds import COMPACT, DELETE_DEAD_FILES, PLAN_COMPACTION
from headrace.jobs.lease import Lease
from headrace.jobs.runner import JobHandler
from headrace.metastore.api.agents import AgentRegistration, RegisteredAgent
from headrace.metastore.api.commit import BatchOutcome, FileCommit, StagedBatch
from headrace.metastore.api.jobs import NewJob
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.keys import partition_key
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.merging import MergingStore
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.header import read_header
from headrace.storage.segment.rereading import VerifiedReads
from headrace.storage.segment.writer import SegmentWriter
from load.workloads.counting_store import CountingStore
from load.workloads.replay import Replay, replay

TOPIC = "hour"
LEASE_MS = 600_000
TELL_TIME = """
CREATE OR REPLACE FUNCTION wall_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN (SELECT ms FROM told_time)
"""
"""A table, not a new function each time: after that Postgres would plan every statement again."""
REMEMBERED = 4
"""Batches that are sent again: with the new one before them, the metastore knows 5 of a producer and partition."""


@dataclass(frozen=True)
class FlushShape:
    """What each flush holds of each partition: one new batch, and old ones that are sent again."""

    partitions: int = 20
    records: int = 10
    """Number of records of a batch, each of about 100 bytes."""
    resent: int = 0
    """Number of batches that the producer has sent before and sends again, with this new one among them."""


@dataclass
class _Producer:
    """A producer of one partition."""

    sequence: int = 0
    sent: deque[bytes] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


class SimulatedCluster:
    """Make it with `open`; `close` in the end."""

    def __init__(
        self, url: str, metastore: PostgresMetastore, agent: RegisteredAgent, shape: FlushShape, now_ms: int, seed: int
    ) -> None:
        self._url, self.metastore, self._agent, self._shape, self.now_ms = url, metastore, agent, shape, now_ms
        self._raw = psycopg.connect(url, autocommit=True)
        self._raw.execute("CREATE TABLE told_time AS SELECT %s::bigint AS ms", (now_ms,))
        self._raw.execute(TELL_TIME)
        self._clock, self._rng = SystemClock(), random.Random(seed)
        self._topic_id = uuid.UUID(int=self._rng.getrandbits(128))
        self.keys: list[int] = []
        self.store = CountingStore(MemoryStore(self._clock), self._clock)
        self.outcomes: Counter[BatchOutcome] = Counter()
        self.flushed_bytes = 0
        """Of batches."""
        self.jobs = 0
        """That merged."""
        self._producers = [_Producer() for _ in range(shape.partitions)]
        settings = Settings()
        bucket, registry = MergingStore(self.store), CollectorRegistry()
        metrics = CompactionMetrics(registry)
        merging = MergeLimits(file_bytes=settings.compaction_file_bytes)
        compactor = Compactor(bucket, metastore, metastore.commit_shards, merging, self._clock, self._rng, metrics)
        deletions = Janitor(metastore, bucket, JanitorMetrics(registry, Undecided(registry)))
        self.delete_delay_s = settings.file_delete_delay_ms / 1000
        self._handlers: dict[str, JobHandler] = {
            PLAN_COMPACTION.name: Planner(metastore, PolicyLimits(), metrics).handle,
            COMPACT.name: compactor.handle,
            DELETE_DEAD_FILES.name: deletions,
        }

    @classmethod
    async def open(cls, url: str, shape: FlushShape, *, seconds: float, seed: int = 1) -> SimulatedCluster:
        """Open a cluster on a migrated database, for `seconds` at the most: simulated time begins so far in the
        past.
        """
        metastore = await PostgresMetastore.open(url, Settings(metastore_pool_size=4))
        agent = await metastore.cluster.register_agent(AgentRegistration(None, uuid.uuid4(), "simulated", 1, None))
        cluster = cls(url, metastore, agent, shape, round((time.time() - seconds) * 1000), seed)
        number = await metastore.cluster.metadata_head()
        assert await metastore.topics.create_topics(number, [NewTopic(TOPIC, cluster._topic_id, shape.partitions, {})])
        cluster.keys = [partition_key(number, index) for index in range(shape.partitions)]
        head = await metastore.cluster.metadata_head()
        await metastore.cluster.heartbeat(*agent, metadata_offset=head, want_fence=False, session_timeout_ms=LEASE_MS)
        return cluster

    async def close(self) -> None:
        """Leave the database; the bucket goes with this object."""
        self._raw.close()
        await self.metastore.close()

    async def advance(self, seconds: float) -> None:
        """Move the database's clock on; what was committed since the last call was committed then."""
        now = self.now_ms / 1000
        self._raw.execute(
            "UPDATE segment_files SET committed_at = to_timestamp(%s) WHERE committed_at > to_timestamp(%s)",
            (now, now),
        )
        self.now_ms += round(seconds * 1000)
        self._raw.execute("UPDATE told_time SET ms = %s", (self.now_ms,))

    async def flush(self, after_s: float = 0.0) -> None:
        """Store and commit a file with batches of every partition, created `after_s` from now."""
        writer, staged = SegmentWriter(), []
        for index, (key, producer) in enumerate(zip(self.keys, self._producers, strict=True)):
            for data in self._batches(index + 1, producer):
                header = read_header(data)
                position = writer.add(self._topic_id, index, key, memoryview(data), header)
                fields = (header.producer_id, header.producer_epoch, header.base_sequence)
                staged.append(StagedBatch(key, position, len(data), header.record_count, header.max_timestamp, *fields))
                self.flushed_bytes += len(data)
        body = writer.finish()
        file_id = new_file_id(self.now_ms + round(after_s * 1000), self._rng)
        await self.store.put(object_key(file_id), body)
        (answer,) = await self.metastore.commits.commit_files(*self._agent, [FileCommit(file_id, len(body), staged)])
        self.outcomes.update(batch.outcome for batch in answer.batches)

    async def compact(self) -> None:
        """Plan and carry out, until nothing is due."""
        while True:
            await self._run(PLAN_COMPACTION.name, PLAN_COMPACTION.once())
            before = self.jobs
            while await self._run(COMPACT.name):
                self.jobs += 1
            if self.jobs == before:
                return

    async def clean(self) -> None:
        """The janitor comes by."""
        await self._run(DELETE_DEAD_FILES.name, DELETE_DEAD_FILES.once())

    async def audit(self) -> Audit:
        """Every byte looked at. RuntimeError when something is wrong."""
        reads = VerifiedReads(self.store, self._clock, self._rng)
        found = await audit(self.metastore, reads, deep=True, on_progress=lambda *_: None)
        if found.violation_count:
            raise RuntimeError(f"the audit found {found.violations[:3]}")
        return found

    async def replay(self) -> Replay:
        """The whole topic, read by a client of a separate agent."""
        await self.metastore.cluster.unregister_agent(*self._agent)  # else that agent would ask it for its cache
        return await replay(self._url, self.store, self._clock, TOPIC, self._shape.partitions)

    def record_count(self) -> int:
        """Records that can be read."""
        return self._shape.records * self.outcomes[BatchOutcome.APPENDED]

    async def _run(self, kind: str, new: NewJob | None = None) -> bool:
        """Carry out a job of the kind, `new` if given; False when there is none."""
        if new is not None:
            await self.metastore.jobs.enqueue_jobs([new])
        job = await self.metastore.jobs.claim_job("simulated", [kind], LEASE_MS)
        if job is None:
            return False
        lease = Lease(self.metastore.jobs, job, self._clock, claimed_at=self._clock.monotonic(), lease_ms=LEASE_MS)
        await self._handlers[kind](job, lease)
        await self.metastore.jobs.finish_job(job.token)
        return True

    def _batches(self, producer_id: int, producer: _Producer) -> list[bytes]:
        """A new batch, then what is sent again. Half of each value is the same words, half is noise, as logs are."""
        words = b"level=info path=/api/v1/orders status=200 user="
        records = [Record(n, self.now_ms, None, words + self._rng.randbytes(48)) for n in range(self._shape.records)]
        new = encode_batch(
            records, base_offset=0, producer_id=producer_id, producer_epoch=0, base_sequence=producer.sequence
        )
        producer.sequence += self._shape.records
        again = [self._rng.choice([*producer.sent, new]) for _ in range(self._shape.resent)]
        producer.sent.append(new)
        return [new, *again]
