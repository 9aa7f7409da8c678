"""The jobs of remote segments' records: `archive-audit`, `archive-audit-rows`, `clean-up-segments`.

Place: run by the job loop, archive-audit every 20 seconds, clean-up-segments every segments.cleanup.interval.ms by
one worker at a time. Any number of workers archive at a time, each for another metadata partition: the queue has at
most one unfinished job for each. metastore/audit_trail.py has the objects and their reader.
archive-audit-rows, for one metadata partition:
  archive   its oldest rows become objects, as long as there are as many as a block has
archive-audit, for all of them:
  queue     a job archive-audit-rows for each metadata partition with that many rows
  join      neighbouring objects of a day into one, every hour; the old ones become due
  delete    due objects, after file.delete.delay.ms: joined ones, and those that retention removed (trim_audit)
  sweep     objects that no row names, after a day: of a worker that stopped between PUT and statement, or of a part
            of the metastore's history that a restore took back
clean-up-segments ends keys that no worker and no deletion brings to their end:
  orphans      uploads without a lease: DELETE_STARTED; the janitor deletes their objects (janitor.py)
  reservations ids that no key names: their objects are deleted
  tombstones   for keys that are deleted, if the janitor stopped in between; removed after delete.retention.ms
  partitions   DELETE_PARTITION_FINISHED once their keys have tombstones, a tombstone once these are gone
  audit        its oldest records go
  keys         for merged files that were readable before there were keys

Invariant of the archive: rows go only in the statement that names the object which has their records, after its PUT
was confirmed. An object goes only after no row names it, or only a due one, which readers do not see. Each lease
writes under other keys, and its statements are refused once it has ended or its job has another lease. So an object
of a lease that is over is never named if it was not before. Deletions need the permit of all janitors (permit.py); a
restored metastore gets it by an audit. After a crash at any step the next run continues. Objects of a higher epoch
belong to a later lease or life, and stay.
Cost: Postgres keeps at most BLOCK_RECORDS rows per metadata partition, what comes between two runs, and one row per
object; a small trail stays in Postgres, and queues no jobs. The bucket is listed at the start, in a new life, and
once a day. Memory: the bytes of one object per job, of up to about JOIN_RECORDS records (some 15 MB).
Invariant of the cleanup: each step is a short transaction, fenced by the lease where it decides something, and costs
what it finds: no scan covers live segments, or what is gone. After a crash, the next run continues.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.compactor.permit import permit
from headrace.jobs.kinds import ARCHIVE_AUDIT_ROWS
from headrace.jobs.lease import Lease
from headrace.metastore.api.audit_archive import AUDIT_PREFIX, ArchivedAudit
from headrace.metastore.api.jobs import Job
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.segments import METADATA_PARTITIONS, SegmentApi
from headrace.metastore.audit_trail import BLOCK_RECORDS, ObjectWriter, epoch_of, verified_blocks
from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError, NotFoundError, UnavailableError
from headrace.storage.objects.store import ObjectStore
from headrace.storage.segment.rereading import VerifiedReads

logger = logging.getLogger(__name__)

BLOCKS_PER_OBJECT = 8
"""The most blocks of an object before objects are joined: one statement removes the rows of its records."""
OBJECTS_PER_JOB = 50
"""A limit, after which other jobs have their turn even if rows are left."""
JOIN_RECORDS = 256_000
"""Objects with fewer records are joined once they have as many together."""
JOIN_SPAN_MS = 86_400_000
"""Retention removes an object as a whole: it is not to keep records much longer than they are asked for."""
RUNS_PER_JOIN, RUNS_PER_SWEEP = 180, 4_320
RUNS_PER_RECHECK = 30
"""Instead of RUNS_PER_SWEEP while objects are missing: they may be copied back, or expire."""
SWEEP_AGE_MS = 86_400_000
OBJECTS_PER_CALL = 1_000


class AuditArchiveMetrics:
    """One set per process with the role compactor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.records = Counter(
            "headrace_audit_trail_archived_records_total",
            "Records of the audit trail that were moved from Postgres to the bucket",
            registry=registry,
        )
        self.bytes = Counter(
            "headrace_audit_trail_archived_bytes_total", "Bytes of the objects that have them", registry=registry
        )
        deleted = Counter(
            "headrace_audit_trail_objects_deleted_total",
            "Objects of the audit trail that were deleted, by reason: due (expired, joined), and orphans without a row",
            ["reason"],
            registry=registry,
        )
        self.due, self.orphans = deleted.labels("due"), deleted.labels("orphan")
        self.missing = Gauge(
            "headrace_audit_trail_objects_missing",
            "Objects of the audit trail that the bucket lacked at the last list",
            registry=registry,
        )


class AuditArchiver:
    """The jobs.runner.JobHandler of archive-audit, and with `archive_rows` the one of archive-audit-rows."""

    def __init__(
        self,
        api: Metastore,
        store: ObjectStore,
        clock: Clock,
        rng: random.Random,
        metrics: AuditArchiveMetrics,
    ) -> None:
        self._api, self._store, self._clock, self._rng, self._metrics = api, store, clock, rng, metrics
        self._life = -1
        self._runs = 0
        """The number of runs in this life of the metastore."""
        self._missing = 0
        """How many objects were missing at the last list."""

    async def __call__(self, job: Job, lease: Lease) -> None:
        """All steps. FencedError if the lease is lost; UnavailableError at the end if the store refused a deletion."""
        if (life := self._api.life.named_life) != self._life:
            self._life, self._runs = life, 0
        if parts := await self._api.audit_archive.archivable_audit(BLOCK_RECORDS):
            await self._api.jobs.enqueue_jobs(
                [ARCHIVE_AUDIT_ROWS.once(f"{part:02}") for part, _ in parts], by=lease.token
            )
        if self._runs % RUNS_PER_JOIN == 0:
            await self._join(lease)
        refused = await self._delete_due(lease)
        if self._runs % (RUNS_PER_RECHECK if self._missing else RUNS_PER_SWEEP) == 0:
            await self._sweep(lease)
        self._runs += 1
        if refused:
            raise UnavailableError(f"deletions refused by the store, to be tried again: objects={refused}")

    async def archive_rows(self, job: Job, lease: Lease) -> None:
        """Move rows of the job's metadata partition until less than a block is left. FencedError if it is lost."""
        part, archived = int(job.key), 0
        firsts = dict(await self._api.audit_archive.archivable_audit(BLOCK_RECORDS))
        first = firsts.get(part)
        for _ in range(OBJECTS_PER_JOB):
            if first is None or (moved := await self._archive_once(part, first, lease)) is None:
                return
            first = moved.last_offset + 1
            archived += moved.records
            lease.progress = f"archived={archived}"

    async def _archive_once(self, part: int, first: int, lease: Lease) -> ArchivedAudit | None:
        """Move the first rows to an object; None if they do not fill a block, or if retention was faster."""
        writer, newest_ms, start = ObjectWriter(), 0, first
        while len(writer.blocks) < BLOCKS_PER_OBJECT:
            events = (await self._api.segment_logs.read_audit_log(part, start, BLOCK_RECORDS)).rows
            if len(events) < BLOCK_RECORDS:
                break
            writer.add(events)
            start = events[-1].audit_offset + 1
            newest_ms = max(newest_ms, *(event.event_ms for event in events))
        if not writer.blocks:
            return None
        archived, data = _made(writer, part, newest_ms, lease)
        return archived if await self._move(lease, archived, data) else None

    async def _move(self, lease: Lease, archived: ArchivedAudit, data: bytes) -> bool:
        """Store the object, then replace its rows. False if retention was faster: the object is swept later."""
        await self._store.put(archived.object_key, data)
        if is_done := await self._api.audit_archive.archive_audit(lease.token, archived):
            self._metrics.records.inc(archived.records)
            self._metrics.bytes.inc(len(data))
        return is_done

    async def _join(self, lease: Lease) -> None:
        """One object instead of several, where there are enough. Nothing where retention is faster.

        The objects are deleted later: only blocks that were verified are written again. BadTransferError if an object
        was altered in each read.
        """
        reads = VerifiedReads(self._store, self._clock, self._rng)
        for part in range(METADATA_PARTITIONS):
            for group in joinable(await self._api.audit_archive.archived_audit(part)):
                writer = ObjectWriter()
                try:
                    for row in group:
                        check = partial(verified_blocks, archived=row)
                        writer.add_object(await reads.read(row.object_key, None, check, f"key={row.object_key}"))
                except (NotFoundError, CorruptError) as error:
                    logger.error("objects of the audit trail cannot be joined: partition=%d error=%s", part, error)
                    continue
                joined, data = _made(writer, part, max(row.newest_ms for row in group), lease)
                await self._store.put(joined.object_key, data)
                await self._api.audit_archive.join_audit(lease.token, joined, len(group))
                lease.progress = f"joined={len(group)} first={joined.first_offset}"

    async def _delete_due(self, lease: Lease) -> int:
        """Delete objects, then the rows of those that the store confirmed; how many it refused."""
        while due := await self._api.audit_archive.due_audit(OBJECTS_PER_CALL):
            incarnation_id = await permit(self._api.files, self._store, lease.token)
            if incarnation_id is None:
                return 0
            confirmed = set(await self._store.delete_many([each.object_key for each in due]))
            gone = [each for each in due if each.object_key in confirmed]
            await self._api.audit_archive.drop_audit(lease.token, incarnation_id, gone)
            self._metrics.due.inc(len(gone))
            if len(gone) < len(due):
                return len(due) - len(gone)
        return 0

    async def _sweep(self, lease: Lease) -> None:
        """Delete objects that no row names; count rows without an object.

        The list is made first, then the leases are read, then the rows: a lease that is over by then names no more.
        """
        orphans: list[str] = []
        missing: list[str] = []
        born_before_ms = self._clock.wall_ms() - SWEEP_AGE_MS
        for part in range(METADATA_PARTITIONS):
            listed = {found.key: found async for found in self._store.list_objects(f"{AUDIT_PREFIX}{part:02}/")}
            unfinished = await self._api.audit_archive.archiving_epochs(ARCHIVE_AUDIT_ROWS.name) if listed else set()
            rows = {row.object_key: row for row in await self._api.audit_archive.archived_audit(part)}
            missing += [key for key, row in rows.items() if key not in listed and not row.is_due]
            for key, found in listed.items():
                epoch = epoch_of(key)
                if key in rows or epoch is None or epoch >= lease.token.epoch or epoch in unfinished:
                    continue
                orphans += [key] if found.modified_ms < born_before_ms else []
        self._missing = len(missing)
        self._metrics.missing.set(self._missing)
        if missing:
            logger.error("objects of the audit trail are missing: objects=%d first=%s", len(missing), min(missing))
        if orphans and await permit(self._api.files, self._store, lease.token) is not None:
            for start in range(0, len(orphans), OBJECTS_PER_CALL):
                some = orphans[start : start + OBJECTS_PER_CALL]
                self._metrics.orphans.inc(len(await self._store.delete_many(some)))


def joinable(rows: Sequence[ArchivedAudit]) -> list[list[ArchivedAudit]]:
    """Return which neighbours become one object each: of a day, with JOIN_RECORDS together, none with so many alone.
    Pure.
    """
    groups: list[list[ArchivedAudit]] = []
    run: list[ArchivedAudit] = []
    for row in rows:
        if row.is_due:
            continue
        while run and row.newest_ms - run[0].newest_ms > JOIN_SPAN_MS:
            run.pop(0)
        if row.records >= JOIN_RECORDS:
            run = []
            continue
        run.append(row)
        if sum(each.records for each in run) >= JOIN_RECORDS:
            groups.append(run)
            run = []
    return groups


def _made(writer: ObjectWriter, part: int, newest_ms: int, lease: Lease) -> tuple[ArchivedAudit, bytes]:
    """The row and the bytes of an object."""
    data, index_size = writer.finish()
    first, last = writer.blocks[0].first_offset, writer.blocks[-1].last_offset
    records = sum(block.records for block in writer.blocks)
    return ArchivedAudit(part, first, last, records, newest_ms, len(data), index_size, lease.token.epoch), data


ROWS_PER_CALL = 1_000


class SegmentCleanupMetrics:
    """One set per process with the role compactor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.changed = Counter(
            "headrace_segment_cleanup_total",
            "Rows of the lifecycle of remote segments that the cleanup changed or removed, by step",
            ["step"],
            registry=registry,
        )


class CleanupTerms(Protocol):
    """How long what is deleted is kept: the part of Settings that the cleanup needs."""

    @property
    def segments_tombstone_retention_ms(self) -> int:
        """Retention of tombstones in ms."""

    @property
    def segments_audit_retention_ms(self) -> int:
        """Retention of the audit trail in ms."""


class SegmentCleanup:
    """A jobs.runner.Handler."""

    def __init__(self, api: SegmentApi, terms: CleanupTerms, metrics: SegmentCleanupMetrics) -> None:
        self._api = api
        self._terms = terms
        self._metrics = metrics

    async def handle(self, job: Job, lease: Lease) -> None:
        """One round of all steps. FencedError if the lease is lost."""
        api, token, terms, most = self._api, lease.token, self._terms, ROWS_PER_CALL
        tombstone_ms = terms.segments_tombstone_retention_ms
        audit_ms = terms.segments_audit_retention_ms
        steps: dict[str, Callable[[], Awaitable[int]]] = {
            "orphans": lambda: api.end_orphaned_segments(token, most),
            "reservations": lambda: api.end_unused_reservations(token, most),
            "tombstones": lambda: api.tombstone_segments(most),
            "removed": lambda: api.remove_tombstones(token, older_than_ms=tombstone_ms, limit=most),
            "partitions": lambda: api.finish_partition_deletes(most),
            "audit": lambda: api.trim_audit(token, older_than_ms=audit_ms, limit=most),
            "keyed": lambda: api.key_merged_file(token),
        }
        for name, step in steps.items():
            total = 0
            while changed := await step():
                total += changed
                lease.progress = f"{name}={total}"
            self._metrics.changed.labels(name).inc(total)
