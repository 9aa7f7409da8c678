"""The audit trail of two metadata partitions: a real Postgres, a bucket in memory, time that tests move, and a model.

`model` has the records that consumers may read, by metadata partition and audit offset, as the topic renders them;
`check_fetch` asks the topic for an offset and compares. Rows of events are written as they are (lifecycle_rows.py).
`restore` takes Postgres back to where `save` was called, in a new life, as a promotion does (begin_life.sql); the
bucket stays as it is. `pause` stops a worker in the middle of a job; others may take its lease.
Blocks have RECORDS records here.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from typing import Any

import psycopg
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from headrace.agent.fetch import rendered_topics
from headrace.agent.fetch.rendered_topics import AuditTopic, KnownEnds
from headrace.compactor import segments as audit_archive
from headrace.compactor.permit import Mark, write_mark
from headrace.compactor.segments import SWEEP_AGE_MS, AuditArchiveMetrics, AuditArchiver
from headrace.jobs.kinds import ARCHIVE_AUDIT, ARCHIVE_AUDIT_ROWS
from headrace.jobs.lease import Lease
from headrace.jobs.runner import JobHandler
from headrace.metastore.api.audit_archive import AUDIT_PREFIX
from headrace.metastore.api.jobs import Job
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.segment_logs.rendering import audit_record
from headrace.protocol.fetch_codec import FetchPartition
from headrace.storage.errors import FencedError, HeadraceError
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.records.codec import Record, decode_records
from headrace.storage.records.header import read_header
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.compactor.janitor_world import Killed, PausingWire, Tripwire
from tests.manual_clock import ManualClock
from tests.metastore.lifecycle_rows import LifecycleRows
from tests.metastore.sessions import claim, set_for_cluster
from tests.model.file_model import ShiftedClock

RECORDS = 5
JOIN_RECORDS = 3 * RECORDS
PAGE = 3
DAY_MS = 86_400_000
RETENTION_MS = 4 * DAY_MS
BACKUP_MS = 3 * DAY_MS
"""How old a backup may be, in random histories."""
LEASE_MS = 60_000
LIFE = 1 << 20
TABLES = ("remote_segment_events", "archived_audit", "remote_log_heads")


def small_objects(monkeypatch: Any) -> None:
    """Objects and pages of a few records."""
    monkeypatch.setattr(audit_archive, "BLOCK_RECORDS", RECORDS)
    monkeypatch.setattr(audit_archive, "BLOCKS_PER_OBJECT", 2)
    monkeypatch.setattr(audit_archive, "JOIN_RECORDS", JOIN_RECORDS)
    monkeypatch.setattr(audit_archive, "RUNS_PER_JOIN", 2)
    monkeypatch.setattr(rendered_topics, "PAGE_RECORDS", PAGE)


class TrailWorld:
    """Make it with `open`."""

    def __init__(self, metastore: PostgresMetastore, connection: psycopg.Connection[Any], url: str) -> None:
        self.metastore, self.raw, self.url, self.rng = metastore, connection, url, random.Random(0)
        self.clock = ShiftedClock()
        self.store = MemoryStore(self.clock)
        self.topic = self.new_topic()
        self.logs = [LifecycleRows(connection, index) for index in (0, 1)]
        self.model: dict[int, dict[int, Record]] = {log.partition: {} for log in self.logs}
        self.starts = dict.fromkeys(self.model, 0)
        self._saved: Any = None
        self._saved_ms = 0
        self.paused: list[tuple[PausingWire, Job, asyncio.Task[None]]] = []
        """Workers that stopped, or that were through before."""
        self.archiver = self.new_archiver()

    @classmethod
    async def open(cls, metastore: PostgresMetastore, connection: psycopg.Connection[Any], url: str) -> TrailWorld:
        world = cls(metastore, connection, url)
        await world.keep_deleted(0)
        return world

    async def keep_deleted(self, milliseconds: int) -> None:
        """Objects that retention removed are deleted after this time."""
        await set_for_cluster(self.metastore, "file.delete.delay.ms", milliseconds)

    def new_topic(self, api: Any = None, store: Any = None) -> AuditTopic:
        """The same as a new agent serves it."""
        clock, logs = ManualClock(), (api or self.metastore).segment_logs
        return AuditTopic(logs, an_agent(FakeClusterApi(clock)), KnownEnds(logs, clock), store or self.store)

    def new_archiver(self, api: Any = None, store: Any = None, made: type[AuditArchiver] = AuditArchiver) -> Any:
        """The same as a new process has it."""
        self.registry = CollectorRegistry()
        metrics = AuditArchiveMetrics(self.registry)
        return made(api or self.metastore, store or self.store, self.clock, random.Random(0), metrics)

    def execute(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        found = self.raw.execute(query.encode(), parameters)
        rows = found.fetchall() if found.description else []
        self.raw.commit()
        return rows

    def advance(self, milliseconds: int) -> None:
        """Move all clocks."""
        self.clock.shift_ms += milliseconds
        self.execute(
            "CREATE OR REPLACE FUNCTION wall_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE RETURN"
            f" floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + {self.clock.shift_ms}"
        )

    async def append(self, count: int) -> None:
        """So many events, each in one of the logs."""
        for _ in range(count):
            log = self.rng.choice(self.logs)
            offset, log.begin_ms = log.next_audit_offset, self.clock.wall_ms() - log.next_offset
            end = self.rng.randrange(1 << 30)
            kind = self.rng.randrange(5)
            if kind == 4:
                log.marker(end, 1, self.rng.choice((1, 2)))
            else:
                log.segment(end, self.rng.randrange(9), kind, start=end // 2)
            (event,) = (await self.metastore.segment_logs.read_audit_log(log.partition, offset, 1)).rows
            self.model[log.partition][offset] = audit_record(event, "")

    async def archive(self, archiver: Any = None) -> None:
        """One run of the job, then of all that it queued, side by side; a killed one leaves its lease to run out."""
        archiver = archiver or self.archiver
        await self.plan(archiver)
        jobs = []
        while (job := await self.metastore.jobs.claim_job("test", [ARCHIVE_AUDIT_ROWS.name], LEASE_MS)) is not None:
            jobs.append(job)
        ends = await asyncio.gather(*(self._run(job, archiver.archive_rows) for job in jobs), return_exceptions=True)
        for error in filter(None, ends):
            raise error

    async def plan(self, archiver: Any = None) -> None:
        """One run of the periodic job alone."""
        job = await claim(self.metastore, ARCHIVE_AUDIT.name, key=str(uuid.uuid4()))
        await self._run(job, archiver or self.archiver)

    async def _run(self, job: Job, handler: JobHandler) -> None:
        try:
            await handler(job, self.lease_of(job))
        except (Killed, HeadraceError):
            self.archiver = self.new_archiver()
            self.execute("DELETE FROM jobs WHERE job_id = %s", job.token.job_id)
            raise
        await self.metastore.jobs.finish_job(job.token)

    def lease_of(self, job: Job) -> Lease:
        """The lease of a claimed job."""
        return Lease(self.metastore.jobs, job, self.clock, claimed_at=self.clock.monotonic(), lease_ms=LEASE_MS)

    async def pause(self, wire: PausingWire) -> Job | None:
        """Let another worker archive up to some call, where it stops as with SIGSTOP; None if there is no job."""
        await self.plan()
        job = await self.metastore.jobs.claim_job("paused", [ARCHIVE_AUDIT_ROWS.name], LEASE_MS)
        if job is not None:
            archiver = self.new_archiver(wire.over(self.metastore), wire.over(self.store))
            task = asyncio.create_task(archiver.archive_rows(job, self.lease_of(job)))
            reached = asyncio.create_task(wire.reached.wait())
            await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
            reached.cancel()
            self.paused.append((wire, job, task))
        return job

    async def go_on(self) -> bool:
        """Let one of the workers that stopped continue; whether it still had its lease at the end."""
        wire, job, task = self.paused.pop(self.rng.randrange(len(self.paused)))
        wire.resume.set()
        try:
            await task
            await self.metastore.jobs.finish_job(job.token)
        except FencedError:
            return False
        return True

    async def trim(self) -> None:
        """Do what the cleanup of segments does; the model forgets what is gone, which is old."""
        await self.retain()
        await self._forget()

    async def retain(self) -> None:
        """The cleanup alone."""
        job = await claim(self.metastore, "clean-up-segments", key=str(uuid.uuid4()))
        while await self.metastore.segments.trim_audit(job.token, older_than_ms=RETENTION_MS, limit=1_000):
            pass
        await self.metastore.jobs.finish_job(job.token)

    async def _forget(self) -> None:
        expired_ms = self.clock.wall_ms() - RETENTION_MS
        ends = await self.metastore.segment_logs.segment_log_ends()
        for part, records in self.model.items():
            self.starts[part] = ends[part].audit_start
            gone = [records.pop(offset) for offset in sorted(records) if offset < self.starts[part]]
            assert all(record.timestamp < expired_ms for record in gone), "records that are not old are gone"
            kept = [offset for offset, record in records.items() if record.timestamp < expired_ms]
            assert len(kept) < JOIN_RECORDS + 2 * RECORDS, "old records are kept"

    def save(self) -> None:
        """A backup."""
        for table in TABLES:
            self.execute(f"DROP TABLE IF EXISTS saved_{table}")
            self.execute(f"CREATE TABLE saved_{table} AS TABLE {table}")
        logs = [(log.next_offset, log.next_audit_offset, dict(log.segments)) for log in self.logs]
        self._saved_ms = self.clock.wall_ms()
        self._saved = ({part: dict(records) for part, records in self.model.items()}, dict(self.starts), logs)

    def restore(self) -> None:
        """The state of the backup, in a new life."""
        assert self._saved is not None
        self.execute(f"TRUNCATE {', '.join(TABLES)}")
        for table in TABLES:
            self.execute(f"INSERT INTO {table} SELECT * FROM saved_{table}")
        self.execute(
            "UPDATE remote_log_heads SET next_offset = next_offset + %s, next_audit_offset = next_audit_offset + %s",
            *(LIFE, LIFE),
        )
        self.execute("DELETE FROM jobs WHERE kind = %s", ARCHIVE_AUDIT_ROWS.name)  # no worker of the life before writes
        self.execute("UPDATE cluster SET incarnation_id = %s", uuid.UUID(int=self.rng.getrandbits(128)))
        self.execute("SELECT setval('segment_epochs', last_value + %s) FROM segment_epochs", LIFE)
        records, starts, logs = self._saved
        self.model, self.starts = {part: dict(kept) for part, kept in records.items()}, dict(starts)
        for log, (offset, audit_offset, segments) in zip(self.logs, logs, strict=True):
            log.next_offset, log.next_audit_offset, log.segments = offset + LIFE, audit_offset + LIFE, dict(segments)
        self.archiver = self.new_archiver()
        self.save()

    async def resume(self) -> None:
        """Do what `headrace audit --resume-janitor` does."""
        state = await self.metastore.files.janitor_state()
        await write_mark(self.store, Mark(state.incarnation_id, state.generation))

    async def objects(self) -> set[str]:
        """Return the objects of the trail, in the bucket."""
        return {found.key async for found in self.store.list_objects(AUDIT_PREFIX)}

    async def named(self) -> set[str]:
        """Return the objects that rows name."""
        return {
            row.object_key for part in self.model for row in await self.metastore.audit_archive.archived_audit(part)
        }

    async def check_fetch(self, part: int, offset: int, topic: AuditTopic | None = None) -> int:
        """One fetch returns the next records of the model; the offset after its batch."""
        reply = await (topic or self.topic).fetch(FetchPartition(part, offset, self.rng.choice((1, 700, 1 << 20))))
        if offset < self.starts[part]:
            assert reply.error_code == ErrorCode.offset_out_of_range
            return self.starts[part]
        assert reply.error_code == ErrorCode.none, reply.error_code
        assert reply.log_start_offset == self.starts[part]
        if offset == reply.high_watermark:
            assert not reply.records
            return offset
        ((batch,),) = (reply.records,)
        header = read_header(batch)
        end = header.base_offset + header.last_offset_delta + 1
        assert header.base_offset == offset < end <= reply.high_watermark
        expected = [record for at, record in sorted(self.model[part].items()) if offset <= at < end]
        found = [record for record in decode_records(memoryview(batch)) if record.offset >= offset]
        assert [each[:4] for each in found] == [each[:4] for each in expected], "records"
        return end

    async def check(self) -> None:
        """Reading from any offset on gives all records."""
        for part, records in self.model.items():
            end = (await self.metastore.segment_logs.segment_log_ends())[part].next_audit_offset
            near = sorted({o + d for o in (self.starts[part], *records) for d in (-1, 0, 1)} | {0, end})
            for offset in self.rng.sample(near, min(len(near), 12)):
                if 0 <= offset <= end:
                    await self.check_fetch(part, offset)
            offset = self.starts[part]
            while offset < end:
                offset = await self.check_fetch(part, offset)

    async def check_bucket(self) -> None:
        """After a day, the bucket has the objects that rows name, and no others."""
        await self.resume()
        self.advance(SWEEP_AGE_MS + 1)
        await self.archive(self.new_archiver())
        assert await self.objects() == await self.named()

    async def step(self) -> None:
        """Something happens."""
        match self.rng.choices(range(9), (12, 8, 4, 3, 1, 2, 2, 2, 5))[0]:
            case 0:
                await self.append(self.rng.randrange(12))
            case 1:
                await self.archive()
            case 2:
                self.advance(self.rng.randrange(2 * DAY_MS))
            case 3:
                if self.rng.random() < 0.5:  # two jobs at once
                    await asyncio.gather(self.archive(self.new_archiver()), self.retain())
                await self.trim()
            case 4:
                self.save()
            case 5:
                if self._saved is not None and self.clock.wall_ms() - self._saved_ms < BACKUP_MS:
                    self.restore()
            case 6:
                wire = Tripwire(self.rng.randrange(1, 20), after=self.rng.random() < 0.5)
                with contextlib.suppress(Killed):
                    await self.archive(self.new_archiver(wire.over(self.metastore), wire.over(self.store)))
            case 7:
                await self.resume()
            case _:
                await self.other_worker()

    async def other_worker(self) -> None:
        """Begins to archive and stops somewhere, or continues."""
        if self.paused and self.rng.random() < 0.4:
            await self.go_on()
        else:
            await self.pause(PausingWire(self.rng.randrange(1, 9), after=self.rng.random() < 0.5))
