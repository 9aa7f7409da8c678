"""A link between a source in memory and the real metastore, with a bucket in memory."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry

from headrace.compactor.links.copy_job import LinkCopier, SourceOpener, copy_job
from headrace.compactor.links.metrics import LinkMetrics
from headrace.config.link_configs import BOOTSTRAP_SERVERS, LINK_NAME, LINK_RESOURCE, TOPICS
from headrace.jobs.lease import Lease
from headrace.metastore.api.links import LINKED_EPOCH, LinkedProgress, NewLinkedTopic, SourceReport
from headrace.metastore.api.read import ExtentQuery, is_in_file
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.sealing import Sealing
from headrace.storage.clock import SystemClock
from headrace.storage.file_id import object_key
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange, ObjectStore
from headrace.storage.records.codec import Record, decode_records
from headrace.storage.segment.verified import sound_batches
from tests.compactor.links.fake_source import FakeSource, FakeTopic
from tests.compactor.links.source_log import SourceLog
from tests.metastore.sessions import claim

LINK = "old"
LEASE_MS = 60_000
RUNS_MAX = 200


class FastClock(SystemClock):
    """A second takes five milliseconds."""

    FASTER = 200

    def monotonic(self) -> float:
        return super().monotonic() * self.FASTER

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / self.FASTER)


@dataclass
class LinkWorld:
    """One link. `copy` runs its job until the copy has all that the source has."""

    metastore: PostgresMetastore
    source: FakeSource = field(default_factory=FakeSource)
    store: ObjectStore = field(default_factory=MemoryStore)
    bucket: str = ""
    clock: SystemClock = field(default_factory=FastClock)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    controller_epoch: int = 5

    def __post_init__(self) -> None:
        self.threads = ThreadPoolExecutor(4)
        self.opener = SourceOpener(Sealing(None), self.threads, lambda configs, threads: self.source)
        self.metrics = LinkMetrics(self.registry)
        self.copier = LinkCopier(self.metastore, self.store, self.opener, self.clock, random.Random(1), self.metrics)

    async def create(self, **configs: str) -> None:
        """Create the link."""
        given = {
            BOOTSTRAP_SERVERS: "source:9092",
            TOPICS: ".*",
            **{k.replace("__", "."): v for k, v in configs.items()},
        }
        records = [
            ConfigRecord(resource_type=LINK_RESOURCE, resource_name=LINK, name=name, value=value)
            for name, value in given.items()
        ]
        assert await self.metastore.cluster.append_records(await self.metastore.cluster.metadata_head(), records)

    async def add(self, name: str, *logs: SourceLog) -> FakeTopic:
        """Create a topic at the source, and its copy."""
        topic = self.source.topics[name] = FakeTopic(uuid.uuid4(), list(logs))
        wanted = NewTopic(name, uuid.uuid4(), len(logs), {LINK_NAME: LINK})
        head = await self.metastore.cluster.metadata_head()
        linked = NewLinkedTopic(wanted, LINK, topic.topic_id, LINKED_EPOCH)
        assert await self.metastore.links.create_linked_topics(self.controller_epoch, head, [linked])
        return topic

    async def run(self, share: int = 0, shares: int = 1, worker: str = "") -> None:
        """Run one job to its end. `worker`: lets several jobs copy the same share."""
        wanted = replace(copy_job(LINK, share, shares), key=f"{LINK}/{share}{worker}")
        await self.metastore.jobs.enqueue_jobs([wanted])
        job = await self.metastore.jobs.claim_job("test", [wanted.kind], LEASE_MS)
        assert job is not None
        lease = Lease(self.metastore.jobs, job, self.clock, claimed_at=self.clock.monotonic(), lease_ms=LEASE_MS)
        await self.copier.handle(job, lease)
        await self.metastore.jobs.finish_job(job.token)

    async def run_until(self, holds: Callable[[list[LinkedProgress]], bool]) -> list[LinkedProgress]:
        """Run jobs until this holds of the partitions: how much one does is a matter of the machine."""
        for _ in range(RUNS_MAX):
            await self.run()
            if holds(found := await self.progress()):
                return found
        raise AssertionError(found)

    def forget(self) -> None:
        """Lose what the process has in memory."""
        self.copier = LinkCopier(self.metastore, self.store, self.opener, self.clock, random.Random(2), self.metrics)

    async def report_source(self) -> None:
        """Let the link know its source's cluster id."""
        job = await claim(self.metastore, "link-topics", key=LINK)
        await self.metastore.links.report_source(job.token, SourceReport(LINK, self.source.cluster_id))
        await self.metastore.jobs.finish_job(job.token)

    async def progress(self) -> list[LinkedProgress]:
        """Every partition, by topic and index."""
        return await self.metastore.links.linked_progress()

    async def records(self, partition_key: int) -> list[Record]:
        """Return what is stored of a partition, from its log start on; its extents have no gap."""
        (found,) = await self.metastore.index.find_extents([ExtentQuery(partition_key, 0, 1 << 40)])
        next_offset = None
        records: list[Record] = []
        for extent in filter(is_in_file, found.extents):
            assert next_offset in (None, extent.base_offset)
            next_offset = extent.last_offset + 1
            place = ByteRange(extent.position, extent.length)
            data = await self.store.get(object_key(extent.file_id), place)
            for batch in sound_batches(memoryview(data), extent, leader_epoch=extent.leader_epoch):
                records += [] if batch.header.is_control else decode_records(batch.data)
        return records
