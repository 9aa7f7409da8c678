"""Job kind `delete`: deletes dead files in bulk, after no reader can use them any more.

Place: run by the job loop every minute; the operations that remove files' bytes (retention, DeleteRecords, topic
deletion, compaction) only mark the files as dead. The metrics here are sweeper.py's, too.
Invariant: first the row gets state `deleting`, which is final, then the object is deleted, and the row is deleted
only after the store confirmed. Delay: the cluster's file.delete.delay.ms after a file became dead, and as long as a
merge is running that started earlier, and for up to a week if it may repair a damaged file (held_for_repair.sql);
while the cluster has no value, nothing is deleted. An object that the store refuses to delete is set aside and tried
again later; the others continue. A merged file with keys is deleted with its last reference: a key gives up its
reference after the same delay, gets DELETE_FINISHED once the object that waited for it is gone, and then its
tombstone. After a crash at any step, the next run gets the same files again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.compactor.permit import Undecided, permit
from headrace.jobs.kinds import DELETE_DEAD_FILES
from headrace.jobs.lease import Lease
from headrace.metastore.api.files import DeadFile
from headrace.metastore.api.jobs import Job
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.life.moved import keys_of
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.store import ObjectStore


class JanitorMetrics:
    """One set per process with the role compactor."""

    def __init__(self, registry: CollectorRegistry, undecided: Undecided) -> None:
        self.undecided = undecided
        deleted = Counter(
            "headrace_janitor_objects_deleted_total",
            "Objects deleted with the store's confirmation, by reason: dead files, and orphans without a row",
            ["reason"],
            registry=registry,
        )
        self.dead_deleted = deleted.labels("dead")
        self.orphans_deleted = deleted.labels("orphan")
        self.bytes_deleted = Counter(
            "headrace_janitor_deleted_bytes_total", "Bytes of dead files that were deleted", registry=registry
        )
        self.unconfirmed = Counter(
            "headrace_janitor_unconfirmed_total",
            "Deletions that the store did not confirm; they are repeated",
            registry=registry,
        )
        self.set_aside = Gauge(
            "headrace_janitor_files_set_aside",
            "Dead files that the store refused to delete at the last try; they are tried again later",
            registry=registry,
        )
        self.listed = Counter(
            "headrace_sweeper_objects_listed_total", "Objects that the sweeper listed", registry=registry
        )
        self.refused = Gauge(
            "headrace_janitor_refused",
            "1 while deletion is stopped because the metastore was restored and not audited",
            registry=registry,
        )


logger = logging.getLogger(__name__)

FILES_PER_CALL = 1_000
"""S3's limit of keys per deletion request."""
DELAY_MIN_MS = 60_000
"""After the first refusal; doubled with each further one, up to the longest."""
DELAY_MAX_MS = 86_400_000
REFUSED_FILES_MAX = 10_000
"""Beyond it a refused file starts with the longest delay, so that the counts stay small."""


class RefusedFiles:
    """Count refusals in a row by file id: a file's delay doubles with each, and is forgotten when the file is deleted.

    The counts are this process's; the metastore keeps the time at which a file may be tried again.
    """

    def __init__(self) -> None:
        self._refusals: dict[uuid.UUID, int] = {}

    def __len__(self) -> int:
        return len(self._refusals)

    def refused(self, file_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, int]:
        """File id -> for how many milliseconds it is set aside."""
        return {file_id: self._delay_ms(file_id) for file_id in file_ids}

    def deleted(self, file_ids: Iterable[uuid.UUID]) -> None:
        """The store confirmed these."""
        for file_id in file_ids:
            self._refusals.pop(file_id, None)

    def _delay_ms(self, file_id: uuid.UUID) -> int:
        if file_id not in self._refusals and len(self._refusals) >= REFUSED_FILES_MAX:
            return DELAY_MAX_MS
        count = self._refusals[file_id] = self._refusals.get(file_id, 0) + 1
        return min(DELAY_MIN_MS << min(count - 1, 20), DELAY_MAX_MS)


class Janitor:
    """A jobs.runner.Handler."""

    def __init__(self, api: Metastore, store: ObjectStore, metrics: JanitorMetrics) -> None:
        self._api = api
        self._store = store
        self._metrics = metrics
        self._refused = RefusedFiles()

    async def __call__(self, job: Job, lease: Lease) -> None:
        """Delete all dead files that are due. UnavailableError at the end if the store refused any of them."""
        if not await self._metrics.undecided.has_delay(DELETE_DEAD_FILES.name, self._api.cluster):
            return
        incarnation_id = await permit(self._api.files, self._store, lease.token)
        self._metrics.refused.set(incarnation_id is None)
        if incarnation_id is None:
            return
        while await self._api.segments.release_segments(lease.token, incarnation_id, limit=FILES_PER_CALL):
            pass
        deleted = refused = 0
        while True:
            files = await self._api.files.take_dead_files(lease.token, incarnation_id, limit=FILES_PER_CALL)
            if not files:
                break
            gone = await self._delete(lease, files)
            deleted += gone
            refused += len(files) - gone
            lease.progress = f"{deleted} files deleted"
        while await self._api.segments.tombstone_segments(FILES_PER_CALL):
            pass
        if deleted:
            logger.info("dead files deleted: files=%d", deleted)
        if refused:
            raise UnavailableError(f"deletions refused by the store, to be tried again: files={refused}")

    async def _delete(self, lease: Lease, files: Sequence[DeadFile]) -> int:
        """Delete objects, then the rows of those that the store confirmed; how many those were."""
        gone = await self._confirmed(files)
        if gone:
            await self._api.files.drop_files(lease.token, [file.file_id for file in gone])
            self._refused.deleted(file.file_id for file in gone)
        if len(gone) < len(files):
            refused = self._refused.refused({file.file_id for file in files} - {file.file_id for file in gone})
            await self._api.files.set_aside_files(lease.token, refused)
            self._metrics.unconfirmed.inc(len(refused))
            logger.warning("deletions refused by the store: files=%d first=%s", len(refused), min(refused))
        self._metrics.set_aside.set(len(self._refused))
        self._metrics.dead_deleted.inc(sum(not file.condemned for file in gone))
        self._metrics.bytes_deleted.inc(sum(file.size for file in gone))
        return len(gone)

    async def _confirmed(self, files: Sequence[DeadFile]) -> list[DeadFile]:
        """Delete the objects of files, and what is next to them; return the files of which the store confirmed all."""
        keys = {file.file_id: keys_of(file.file_id) for file in files}
        confirmed = set(await self._store.delete_many([key for some in keys.values() for key in some]))
        return [file for file in files if confirmed.issuperset(keys[file.file_id])]
