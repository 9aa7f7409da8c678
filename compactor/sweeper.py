"""Job kind `sweep`: deletes objects without a row.

Place: run by the job loop every hour. Orphans come from agents and compactors that crashed, or gave up, between a
PUT and its commit, and from PUTs that arrived after their file was deleted. The audit and the rebuild of an index
list segment files in the same way.
Invariant of the listing: keys are in order, so a walk can continue after any key. Objects that are not segment files
are listed separately and never touched. A list may be stale: it says which files to check, and decides nothing.
Invariant: an object is deleted only after its id is condemned, with an insert under the same unique key that a
commit inserts; age only avoids checking files that are still being committed. Orphans younger than the cluster's
file.delete.delay.ms stay, and all while the cluster has no value. Keys that are not those of segment files are
ignored. A stale list is harmless: the primary decides which files have rows.
After a crash, the next worker continues after the last finished page; the janitor deletes objects that were
condemned but not deleted.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator
from typing import NamedTuple

from headrace.compactor.janitor import JanitorMetrics
from headrace.compactor.permit import permit
from headrace.jobs.kinds import SWEEP_ORPHANS
from headrace.jobs.lease import Lease
from headrace.metastore.api.jobs import Job
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.life.moved import keys_of
from headrace.storage.file_id import SEGMENTS, file_id_of
from headrace.storage.objects.store import ObjectInfo, ObjectStore

PAGE_KEYS = 1_000


class Page(NamedTuple):
    """Page of up to PAGE_KEYS objects. `foreign`: keys among them that are not those of segment files."""

    last_key: str
    files: dict[uuid.UUID, ObjectInfo]
    foreign: list[str]


async def pages(store: ObjectStore, *, start_after: str = "") -> AsyncIterator[Page]:
    """Everything below `segments/` after the key `start_after`."""
    page = Page("", {}, [])
    async for found in store.list_objects(SEGMENTS, start_after=start_after):
        try:
            page.files[file_id_of(found.key)] = found
        except ValueError:
            page.foreign.append(found.key)
        page = page._replace(last_key=found.key)
        if len(page.files) + len(page.foreign) >= PAGE_KEYS:
            yield page
            page = Page("", {}, [])
    if page.last_key:
        yield page


logger = logging.getLogger(__name__)

MIN_AGE_MS = 7_200_000
"""A commit under an older id is refused, so none of these can still be in progress. Orphans also wait for the
cluster's file.delete.delay.ms (condemn_files.sql)."""


class Sweeper:
    """A jobs.runner.Handler."""

    def __init__(self, api: Metastore, store: ObjectStore, metrics: JanitorMetrics) -> None:
        self._api = api
        self._store = store
        self._metrics = metrics

    async def __call__(self, job: Job, lease: Lease) -> None:
        """List the bucket from after the key in the job's progress. Refused deletions are left to the janitor."""
        if not await self._metrics.undecided.has_delay(SWEEP_ORPHANS.name, self._api.cluster):
            return
        incarnation_id = await permit(self._api.files, self._store, lease.token)
        self._metrics.refused.set(incarnation_id is None)
        if incarnation_id is None:
            return
        swept = 0
        async for page in pages(self._store, start_after=job.progress):
            self._metrics.listed.inc(len(page.files))
            for key in page.foreign:
                logger.warning("object is not a segment file, ignored: key=%s", key)
            swept += await self._sweep(lease, incarnation_id, list(page.files))
            await lease.save_progress(page.last_key)
        if swept:
            logger.warning("orphans deleted: objects=%d", swept)

    async def _sweep(self, lease: Lease, incarnation_id: uuid.UUID, file_ids: list[uuid.UUID]) -> int:
        """Condemn and delete the files without a row; returns their number."""
        unnamed = await self._api.files.unnamed_files(file_ids) if file_ids else []
        if not unnamed:
            return 0
        condemned = await self._api.files.condemn_files(lease.token, incarnation_id, unnamed, min_age_ms=MIN_AGE_MS)
        if not condemned:
            return 0
        deleted = set(await self._store.delete_many([key for file_id in condemned for key in keys_of(file_id)]))
        confirmed = sum(deleted.issuperset(keys_of(file_id)) for file_id in condemned)
        self._metrics.orphans_deleted.inc(confirmed)
        if confirmed < len(condemned):  # the janitor tries them again: their rows say that they are condemned
            self._metrics.unconfirmed.inc(len(condemned) - confirmed)
            logger.warning("deletions refused by the store: orphans=%d", len(condemned) - confirmed)
        return confirmed
