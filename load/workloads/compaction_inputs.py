"""Inputs of load/benchmarks/spark_compaction.py: the same files twice, once for the local worker and once for Spark.

    small   many files of level 0, each with a small batch for each of some partitions
    keyed   one partition of a topic that is cleaned by key; files of level 1, because cleaning takes no others

Batches of `keyed` are copies of one batch in which only the keys and the checksum differ: encoding millions of records
one by one would take longer than what is measured.
"""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy
import psycopg
from prometheus_client import CollectorRegistry

from headrace.compactor.cleaning.job import large_job
from headrace.compactor.cleaning.policy import CleaningJob, CleaningTask, encode_cleaning
from headrace.compactor.compact import CompactionMetrics, Compactor
from headrace.compactor.merge import MergeLimits
from headrace.compactor.plan import CompactionJob, encode
from headrace.jobs.kinds import CLEAN, COMPACT, COMPACT_LARGE
from headrace.jobs.lease import Lease
from headrace.metastore.api.agents import AgentRegistration
from headrace.metastore.api.commit import FileCommit, StagedBatch
from headrace.metastore.api.jobs import NewJob
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.header import CRC_START, HEADER_BYTES, batch_crc, read_header
from headrace.storage.segment.writer import SegmentWriter

SIDES = ("local", "spark")
PARTITIONS = 20
RECORD_BYTES = 500
KEY_BYTES, VALUE_BYTES = 8, 50
RECORDS_PER_BATCH = 5_000
BATCHES_PER_FILE = 20
FILES_PER_MERGE = 20
LEASE_MS = 3_600_000
DAY_MS = 86_400_000


class Inputs:
    """Commits to a cluster that no agent uses."""

    def __init__(self, url: str, metastore: PostgresMetastore, bucket: Path) -> None:
        self._url, self._metastore = url, metastore
        self._clock, self._rng = SystemClock(), random.Random(1)
        self._store = DirectoryStore(bucket, self._clock)

    async def begin(self) -> None:
        """Be an agent."""
        self._agent = await self._metastore.cluster.register_agent(
            AgentRegistration(None, uuid.uuid4(), "bench", 1, None)
        )
        head = await self._metastore.cluster.metadata_head()
        await self._metastore.cluster.heartbeat(
            *self._agent, metadata_offset=head, want_fence=False, session_timeout_ms=60_000
        )

    async def small(self, name: str, files: int, megabytes: int) -> tuple[NewJob, int]:
        """(the job over the files, their live bytes)."""
        keys, topic_id = await self._topic(name, PARTITIONS)
        count = max(megabytes * 1_000_000 // files // PARTITIONS // RECORD_BYTES, 1)
        value = self._rng.randbytes(RECORD_BYTES)
        now_ms = self._clock.wall_ms()
        batch = encode_batch([Record(n, now_ms + n, b"%d" % n, value) for n in range(count)], base_offset=0)
        for _ in range(files):
            await self._flush(topic_id, [(key, batch) for key in keys])
        found, size = await self._live(keys)
        is_large = name == "spark"
        job = CompactionJob(tuple(found), 2, is_large)
        return NewJob(COMPACT_LARGE.name if is_large else COMPACT.name, name, encode(job)), size

    async def keyed(self, name: str, records: int, keys: int) -> tuple[NewJob, int]:
        """(the cleaning job, the live bytes that it reads)."""
        (partition, *_), topic_id = await self._topic(f"keyed-{name}", 1, {"cleanup.policy": "compact"})
        waiting: list[tuple[int, bytes]] = []
        for batch in self._keyed_batches(records, keys):
            waiting.append((partition, batch))
            if len(waiting) == BATCHES_PER_FILE:
                await self._flush(topic_id, waiting)
                waiting = []
        if waiting:
            await self._flush(topic_id, waiting)
        await self._merge_flushed(partition)
        with psycopg.connect(self._url) as connection:  # as the planner does after segment.ms
            connection.execute(
                "INSERT INTO cleaned_partitions (partition_key, roll_offset) VALUES (%s, %s)", (partition, records)
            )
        _, size = await self._live([partition])
        task = CleaningTask(partition, records, DAY_MS)
        if name == "spark":
            return large_job(task), size
        return CLEAN.once(name, encode_cleaning(CleaningJob((task,)))), size

    def _keyed_batches(self, records: int, keys: int) -> Iterator[bytes]:
        rng = numpy.random.default_rng(1)
        now_ms = self._clock.wall_ms()
        mark, value = b"\xff" * KEY_BYTES, b"v" * VALUE_BYTES
        for start in range(0, records, RECORDS_PER_BATCH):
            count = min(RECORDS_PER_BATCH, records - start)
            if not start or count < RECORDS_PER_BATCH:
                plain = encode_batch([Record(n, now_ms, mark, value) for n in range(count)], base_offset=0)
                bytes_of = numpy.frombuffer(plain, numpy.uint8)
                places = _places(plain, mark)[:, None] + numpy.arange(KEY_BYTES)
            made = bytes_of.copy()
            numbers = rng.integers(0, keys, count, dtype=numpy.uint64)
            made[places] = numbers.astype(">u8").view(numpy.uint8).reshape(count, KEY_BYTES)
            batch = bytearray(made.tobytes())
            struct.pack_into(">I", batch, CRC_START - 4, batch_crc(memoryview(batch)))
            yield bytes(batch)

    async def _merge_flushed(self, partition: int) -> None:
        files, _ = await self._live([partition])
        metrics = CompactionMetrics(CollectorRegistry())
        worker = Compactor(
            *(self._store, self._metastore, self._metastore.commit_shards, MergeLimits()),
            *(self._clock, self._rng, metrics),
        )
        for at in range(0, len(files), FILES_PER_MERGE):
            job = CompactionJob(tuple(files[at : at + FILES_PER_MERGE]), 1)
            await self._metastore.jobs.enqueue_jobs([COMPACT.once(f"level 1 {at}", encode(job))])
            claimed = await self._metastore.jobs.claim_job("bench", [COMPACT.name], LEASE_MS)
            assert claimed is not None
            began = self._clock.monotonic()
            await worker.handle(
                claimed, Lease(self._metastore.jobs, claimed, self._clock, claimed_at=began, lease_ms=LEASE_MS)
            )
            await self._metastore.jobs.finish_job(claimed.token)

    async def _topic(
        self, name: str, partitions: int, configs: dict[str, str] | None = None
    ) -> tuple[list[int], uuid.UUID]:
        topic = NewTopic(name, uuid.uuid4(), partitions, configs or {})
        assert await self._metastore.topics.create_topics(await self._metastore.cluster.metadata_head(), [topic])
        number = (await load_image(self._metastore.cluster)).topics_by_name[name].topic_number
        return [number << 24 | index for index in range(partitions)], topic.topic_id

    async def _flush(self, topic_id: uuid.UUID, batches: list[tuple[int, bytes]]) -> None:
        """A file of level 0."""
        writer, staged = SegmentWriter(), []
        for key, batch in batches:
            header = read_header(batch)
            position = writer.add(topic_id, key & 0xFFFFFF, key, memoryview(batch), header)
            staged.append(StagedBatch(key, position, len(batch), header.record_count, header.max_timestamp))
        body = writer.finish()
        file_id = new_file_id(self._clock.wall_ms(), self._rng)
        await self._store.put(object_key(file_id), body)
        await self._metastore.commits.commit_files(*self._agent, [FileCommit(file_id, len(body), staged)])

    async def _live(self, keys: list[int]) -> tuple[list[uuid.UUID], int]:
        """(live files, live bytes); one answer has a limited number of extents."""
        files, size, offsets = set(), 0, dict.fromkeys(keys, 0)
        while offsets:
            queries = [ExtentQuery(key, offset, 1 << 50) for key, offset in offsets.items()]
            offsets = {}
            for found in await self._metastore.index.find_extents(queries):
                for extent in found.extents:
                    files.add(extent.source)
                    size += extent.length
                    offsets[found.partition_key] = extent.last_offset + 1
        return sorted(files), size


def _places(batch: bytes, mark: bytes) -> numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]:
    """Return where the keys are."""
    found, at = [], batch.find(mark, HEADER_BYTES)
    while at >= 0:
        found.append(at)
        at = batch.find(mark, at + len(mark))
    return numpy.array(found)
