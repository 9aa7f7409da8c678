"""Job kind `delete`: deletes dead files in bulk, after no reader can use them any more.

Place: run by the job loop every minute; the operations that remove files' bytes (retention, DeleteRecords, topic
deletion, compaction) only mark the files as dead.
Invariant: first the row gets state `deleting`, which is final, then the object is deleted, and the row is deleted
only
after the store confirmed. Delay: file.delete.delay.ms after a file became dead, and as long as a merge is running
that
started earlier. After a crash at any step, the next run gets the same files again.
"""

from __future__ import annotations

import logging

from headrace.compactor.janitor_metrics import JanitorMetrics
from headrace.compactor.lease import Lease
from headrace.compactor.permit import permit
from headrace.metastore.api.files import DELETE_DEAD_FILES, FileApi
from headrace.metastore.api.jobs import Job
from headrace.storage.errors import UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

KIND = DELETE_DEAD_FILES.kind
FILES_PER_CALL = 1_000
"""S3's limit of keys per deletion request."""


class Janitor:
    """A compactor.runner.Handler."""

    def __init__(self, api: FileApi, store: ObjectStore, metrics: JanitorMetrics, *, delay_ms: int) -> None:
        """`delay_ms`: file.delete.delay.ms."""
        self._api = api
        self._store = store
        self._metrics = metrics
        self._delay_ms = delay_ms

    async def __call__(self, job: Job, lease: Lease) -> None:
        """Delete all dead files that are due. UnavailableError if the store did not confirm all deletions."""
        incarnation_id = await permit(self._api, self._store, lease.token)
        self._metrics.refused.set(incarnation_id is None)
        if incarnation_id is None:
            return
        deleted = 0
        while True:
            files = await self._api.take_dead_files(
                lease.token, incarnation_id, delay_ms=self._delay_ms, limit=FILES_PER_CALL
            )
            if not files:
                break
            confirmed = set(await self._store.delete_many([object_key(file.file_id) for file in files]))
            gone = [file for file in files if object_key(file.file_id) in confirmed]
            if gone:
                await self._api.drop_files(lease.token, [file.file_id for file in gone])
            self._metrics.dead_deleted.inc(sum(not file.condemned for file in gone))
            self._metrics.bytes_deleted.inc(sum(file.size for file in gone))
            deleted += len(gone)
            lease.progress = f"{deleted} files deleted"
            if len(gone) < len(files):
                self._metrics.unconfirmed.inc(len(files) - len(gone))
                raise UnavailableError(f"deletions not confirmed: files={len(files) - len(gone)} of={len(files)}")
        if deleted:
            logger.info("dead files deleted: files=%d", deleted)
