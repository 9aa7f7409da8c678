"""Job kind `record-outcomes`: writes to the bucket how transactions ended, so that a rebuild of the metastore knows it.

Place: run by the job loop every few seconds; metastore/transactions/outcomes.py has the objects.
Invariant: an outcome leaves the metastore only after an object has it, and an object goes only after another one has
all of it that is still in the log. So after a crash at any step an outcome may be there twice, and none is missing.
Objects of an earlier life of the metastore are written again without what that life lost: an end that is not in the
log any more was undone.
Cost: one PUT per run with ended transactions; an outcome is written again once for each factor of JOIN_AT objects.
"""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Sequence

from headrace.compactor.lease import Lease
from headrace.metastore.api.jobs import Job
from headrace.metastore.api.outcomes import RECORD_OUTCOMES, OutcomeApi, TransactionOutcome
from headrace.metastore.transactions.outcomes import (
    OutcomeObject,
    list_outcomes,
    read_outcomes,
    write_outcomes,
)
from headrace.storage.objects.store import ObjectStore

KIND = RECORD_OUTCOMES.kind
OUTCOMES_PER_OBJECT = 20_000
JOIN_AT = 16
"""So many objects of similar size become one."""
PROBES_PER_CALL = 2_000


class OutcomeRecorder:
    """A compactor.runner.JobHandler."""

    def __init__(self, api: OutcomeApi, store: ObjectStore, rng: random.Random) -> None:
        self._api, self._store, self._rng = api, store, rng

    async def __call__(self, job: Job, lease: Lease) -> None:
        """Record what has ended. FencedError if the lease is lost; else as metastore and store."""
        life, wrote = self._api.named_life, False
        while ended := await self._api.ended_transactions(OUTCOMES_PER_OBJECT):
            outcomes = [one.outcome for one in ended if one.outcome is not None]
            if outcomes:
                await write_outcomes(self._store, life, self._name(), outcomes)
                wrote = True
            await self._api.forget_outcomes(lease.token, ended)
        if wrote or not job.progress:
            for group in joined(await list_outcomes(self._store), life):
                await self._join(group, life)
                await lease.save_progress(f"life={life} joined={len(group)}")

    async def _join(self, group: Sequence[OutcomeObject], life: int) -> None:
        """One object instead of these, with what is still in the log."""
        outcomes = {one for found in group for one in await read_outcomes(self._store, found.key)}
        kept = await self._in_log(sorted(outcomes))
        for start in range(0, len(kept), OUTCOMES_PER_OBJECT):
            await write_outcomes(self._store, life, self._name(), kept[start : start + OUTCOMES_PER_OBJECT])
        await self._store.delete_many([found.key for found in group])

    async def _in_log(self, outcomes: Sequence[TransactionOutcome]) -> list[TransactionOutcome]:
        kept: list[TransactionOutcome] = []
        for start in range(0, len(outcomes), PROBES_PER_CALL):
            some = outcomes[start : start + PROBES_PER_CALL]
            kept += [one for one, is_there in zip(some, await self._api.markers_in_log(some), strict=True) if is_there]
        return kept

    def _name(self) -> uuid.UUID:
        return uuid.UUID(int=self._rng.getrandbits(128), version=4)


def joined(objects: Sequence[OutcomeObject], life: int) -> list[list[OutcomeObject]]:
    """Which objects become one: all that an earlier life wrote, and JOIN_AT of one size class. Pure."""
    older = [found for found in objects if found.life < life]
    classes: dict[int, list[OutcomeObject]] = defaultdict(list)
    for found in objects:
        if found.life == life and found.outcomes < OUTCOMES_PER_OBJECT:
            classes[found.outcomes.bit_length() // 4].append(found)
    full = [some for some in classes.values() if len(some) >= JOIN_AT]
    return [group for group in (older, *full) if group]
