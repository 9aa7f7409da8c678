"""Job kind `record-outcomes`: writes to the bucket how transactions ended and which bulk writes were decided.

Place: run by the job loop every few seconds; recorder.py has the steps.
Invariant: an outcome is in use as long as its marker is in the log: an end that is not there any more was undone, or
nothing of its transaction is left.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Protocol

from headrace.compactor.lease import Lease
from headrace.compactor.recorder import Recorder
from headrace.metastore import bulk_records
from headrace.metastore.api.bulk import BulkRecordApi
from headrace.metastore.api.jobs import Job, JobToken
from headrace.metastore.api.outcomes import RECORD_OUTCOMES, EndedTransaction, OutcomeApi, TransactionOutcome
from headrace.metastore.transactions.outcomes import PREFIX
from headrace.storage.objects.store import ObjectStore

KIND = RECORD_OUTCOMES.kind


class OutcomeRecorder(Recorder[EndedTransaction, TransactionOutcome]):
    """How transactions ended."""

    prefix = PREFIX
    kind = TransactionOutcome

    def __init__(self, api: OutcomeApi, store: ObjectStore, rng: random.Random) -> None:
        super().__init__(store, rng)
        self._api = api

    async def waiting(self, most: int) -> Sequence[EndedTransaction]:
        """Ended transactions."""
        return await self._api.ended_transactions(most)

    def entries(self, waiting: Sequence[EndedTransaction]) -> list[TransactionOutcome]:
        """Return the entries of partitions that are there."""
        return [one.outcome for one in waiting if one.outcome is not None]

    async def forget(self, token: JobToken, waiting: Sequence[EndedTransaction]) -> None:
        """Remove the rows."""
        await self._api.forget_outcomes(token, waiting)

    async def in_use(self, entries: Sequence[TransactionOutcome]) -> list[bool]:
        """Return whether the marker of each is in the log."""
        return await self._api.markers_in_log(entries)


class BulkDecisionRecorder(Recorder[uuid.UUID, uuid.UUID]):
    """Write which files are those of decided attempts, so that a rebuild shows no others; an entry is a file id.

    A driver writes the same record before its first chunk (metastore/bulk_records.py): the job adds what a killed
    driver left, and keeps the objects few.
    """

    prefix = bulk_records.PREFIX
    kind = uuid.UUID

    def __init__(self, api: BulkRecordApi, store: ObjectStore, rng: random.Random) -> None:
        super().__init__(store, rng)
        self._api = api
        self._is_marked = False

    async def record(self, life: int, lease: Lease) -> None:
        """As Recorder; then the bucket says that all is recorded."""
        await super().record(life, lease)
        if not self._is_marked:
            if not await bulk_records.are_recorded(self._store):
                await self._store.put(bulk_records.RECORDED, b"")
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
        """Whether the index has each file: the life that decided for it may have been lost."""
        return await self._api.bulk_files_in_index(entries)


class RecordedApi(OutcomeApi, BulkRecordApi, Protocol):
    """What the job asks of the metastore."""


class OutcomeJob:
    """A compactor.runner.JobHandler."""

    def __init__(self, api: RecordedApi, store: ObjectStore, rng: random.Random) -> None:
        self._api = api
        self._recorders = OutcomeRecorder(api, store, rng), BulkDecisionRecorder(api, store, rng)

    async def __call__(self, job: Job, lease: Lease) -> None:
        """Record both. FencedError if the lease is lost; else as metastore and store."""
        life = self._api.named_life
        for recorder in self._recorders:
            await recorder.record(life, lease)
