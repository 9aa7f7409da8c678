"""Writes to the bucket which files of bulk writes are those of decided attempts, so that a rebuild shows no others.

Place: the second half of the job `record-outcomes` (outcomes.py); metastore/bulk_records.py has the objects. A driver
writes the same record before its first chunk: the job adds what a killed driver left, and keeps the objects few.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence

from headrace.compactor.lease import Lease
from headrace.compactor.recorder import Recorder
from headrace.metastore.api.bulk import BulkRecordApi
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.bulk_records import PREFIX, RECORDED, are_recorded
from headrace.storage.objects.store import ObjectStore


class BulkDecisionRecorder(Recorder[uuid.UUID, uuid.UUID]):
    """An entry is a file id."""

    prefix = PREFIX
    kind = uuid.UUID

    def __init__(self, api: BulkRecordApi, store: ObjectStore, rng: random.Random) -> None:
        super().__init__(store, rng)
        self._api = api
        self._is_marked = False

    async def record(self, life: int, lease: Lease) -> None:
        """Record as Recorder does; then the bucket says that all is recorded."""
        await super().record(life, lease)
        if not self._is_marked:
            if not await are_recorded(self._store):
                await self._store.put(RECORDED, b"")
            self._is_marked = True

    async def waiting(self, most: int) -> Sequence[uuid.UUID]:
        """Files of decided attempts."""
        return await self._api.decided_bulk_files(most)

    def entries(self, waiting: Sequence[uuid.UUID]) -> list[uuid.UUID]:
        """All of them."""
        return list(waiting)

    async def forget(self, token: JobToken, waiting: Sequence[uuid.UUID]) -> None:
        """Remove the rows."""
        await self._api.forget_decided_bulk_files(token, waiting)

    async def in_use(self, entries: Sequence[uuid.UUID]) -> list[bool]:
        """Return whether the index has each file: the life that decided for it may have been lost."""
        return await self._api.bulk_files_in_index(entries)
