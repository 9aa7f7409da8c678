"""Job kind `record-outcomes`: writes to the bucket how transactions ended and which bulk writes were decided.

Place: run by the job loop every few seconds; recorder.py has the steps, bulk_decisions.py the second half.
Invariant: an outcome is in use as long as its marker is in the log: an end that is not there any more was undone, or
nothing of its transaction is left.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from headrace.compactor.bulk_decisions import BulkDecisionRecorder
from headrace.compactor.lease import Lease
from headrace.compactor.recorder import Recorder
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
