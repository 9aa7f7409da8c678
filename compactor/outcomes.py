"""Job kind `record-outcomes`: writes to the bucket how transactions ended, so that a rebuild of the metastore knows it.

Place: run by the job loop every few seconds; metastore/transactions/outcomes.py has the objects.
Invariant: an outcome leaves the metastore only after an object has it, and an object goes only after another one has
all of it that is still in the log. So after a crash at any step an outcome may be there twice, and none is missing.
Objects of an earlier life of the metastore are written again without what that life lost: an end that is not in the
log any more was undone. An object of which half is not in the log any more is written again, of any size.
Cost: one PUT per run with ended transactions; an outcome is written again once for each factor of JOIN_AT objects, and
read once for CHECKS_PER_OUTCOME outcomes that are written. The bucket is listed at the start, in a new life, and once
a day: another worker may have run the job meanwhile. So its objects may be gone, or not known here yet.
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
from headrace.storage.errors import NotFoundError
from headrace.storage.objects.store import ObjectStore

KIND = RECORD_OUTCOMES.kind
OUTCOMES_PER_OBJECT = 20_000
JOIN_AT = 16
"""So many objects of similar size become one."""
PROBES_PER_CALL = 2_000
CHECKS_PER_OUTCOME = 4
"""So many stored outcomes are looked up in the log for each new one."""
CHECKS_PER_RUN = 200
"""And so many in each run, also if no transaction ended."""
RUNS_PER_LIST = 8_640


class OutcomeRecorder:
    """A compactor.runner.JobHandler."""

    def __init__(self, api: OutcomeApi, store: ObjectStore, rng: random.Random) -> None:
        self._api, self._store, self._rng = api, store, rng
        self._life = -1
        self._objects: dict[str, OutcomeObject] = {}
        """By key; first those that were not checked for the longest time."""
        self._runs = self._checks = 0
        """Since the last list; how many outcomes may be checked."""

    async def __call__(self, job: Job, lease: Lease) -> None:
        """Record what has ended. FencedError if the lease is lost; else as metastore and store."""
        life = self._api.named_life
        if life != self._life or self._runs >= RUNS_PER_LIST:
            self._objects = {found.key: found for found in await list_outcomes(self._store)}
            self._life, self._runs = life, 0
        self._runs += 1
        self._checks += CHECKS_PER_RUN
        while ended := await self._api.ended_transactions(OUTCOMES_PER_OBJECT):
            await self._write([one.outcome for one in ended if one.outcome is not None])
            self._checks += CHECKS_PER_OUTCOME * len(ended)
            await self._api.forget_outcomes(lease.token, ended)
        for group in joined(list(self._objects.values()), life):
            await self._join(group)
            await lease.save_progress(f"life={life} joined={len(group)}")
        await self._check(lease)

    async def _check(self, lease: Lease) -> None:
        """Write objects again of which half is not in the log any more, in turn."""
        for found in list(self._objects.values()):
            if found.outcomes > self._checks:
                return
            self._checks -= found.outcomes
            stored = await self._read(found)
            kept = await self._in_log(sorted(stored))
            if 2 * len(kept) <= len(stored):
                await self._replace([found], kept)
                await lease.save_progress(f"life={self._life} checked={len(stored)} kept={len(kept)}")
            else:
                self._objects[found.key] = self._objects.pop(found.key)
        self._checks = 0  # all are checked

    async def _join(self, group: Sequence[OutcomeObject]) -> None:
        """One object instead of these, with what is still in the log."""
        outcomes = {one for found in group for one in await self._read(found)}
        await self._replace(group, await self._in_log(sorted(outcomes)))

    async def _replace(self, group: Sequence[OutcomeObject], kept: Sequence[TransactionOutcome]) -> None:
        await self._write(kept)
        await self._store.delete_many([found.key for found in group])
        for found in group:
            self._objects.pop(found.key, None)

    async def _write(self, outcomes: Sequence[TransactionOutcome]) -> None:
        for start in range(0, len(outcomes), OUTCOMES_PER_OBJECT):
            some = outcomes[start : start + OUTCOMES_PER_OBJECT]
            written = await write_outcomes(self._store, self._life, self._name(), some)
            self._objects[written.key] = written

    async def _read(self, found: OutcomeObject) -> list[TransactionOutcome]:
        """Nothing of an object that is gone: another worker has written its outcomes again."""
        try:
            return await read_outcomes(self._store, found.key)
        except NotFoundError:
            return []

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
