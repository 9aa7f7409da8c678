"""Job kind `record-outcomes`: writes to the bucket how transactions ended and which bulk writes were decided; and how
far share groups are (share_record.py).

Place: run by the job loop every few seconds; metastore/recorded_objects.py has the objects.
Invariant: an entry leaves the metastore only after an object has it, and an object goes only after another one has all
of it that is still in use. So after a crash at any step an entry may be there twice, and none is missing. A new life
takes over the objects of earlier ones: it writes them again, without what is not in use any more, which was undone.
They go with the first deletion that permit.py allows, as everything that a restore may want back. An object of which
half is not in use any more is written again, of any size. An outcome is in use as long as its marker is
in the log: an end that is not there any more was undone, or nothing of its transaction is left.
Cost: one PUT per run with new entries; an entry is written again once for each factor of JOIN_AT objects, and read once
for CHECKS_PER_ENTRY entries that are written. The bucket is listed at the start, in a new life, and once a day: another
worker may have run the job meanwhile. So its objects may be gone, or not known here yet.
"""

from __future__ import annotations

import abc
import random
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from headrace.compactor.permit import permit
from headrace.compactor.share_record import ShareRecorder
from headrace.jobs.lease import Lease
from headrace.metastore import recorded_objects
from headrace.metastore.api.jobs import Job, JobToken
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.outcomes import EndedTransaction, OutcomeApi, TransactionOutcome
from headrace.metastore.life.numbers import NO_LIFE
from headrace.metastore.recorded_objects import (
    RecordedObject,
    list_recorded,
    newest_taken_over,
    note_taken_over,
    read_entries,
    write_entries,
)
from headrace.metastore.transaction_outcomes import PREFIX
from headrace.storage.clock import Clock
from headrace.storage.errors import NotFoundError, UnavailableError
from headrace.storage.objects.store import ObjectStore

UNLISTED = -2
"""No life: the bucket has to be listed first."""
MayDelete = Callable[[JobToken], Awaitable[bool]]
"""Return whether objects may be deleted under this lease; FencedError if it is lost."""
Waiting = TypeVar("Waiting")
"""A row of the metastore."""
Entry = TypeVar("Entry")
"""What an object has of it."""

ENTRIES_PER_OBJECT = 20_000
JOIN_AT = 16
"""Number of objects of similar size that become one."""
PROBES_PER_CALL = 2_000
CHECKS_PER_ENTRY = 4
"""Number of stored entries that are looked up for each new one."""
CHECKS_PER_RUN = 200
"""Number of entries that are looked up in each run, also if there is no new one."""
RUNS_PER_LIST = 8_640
RUNS_PER_ASK = 30
"""Number of runs after which a worker asks again whether it may delete."""


class Recorder(abc.ABC, Generic[Waiting, Entry]):
    """One kind of entry. Subclasses say where it is kept, and what is still in use."""

    prefix: ClassVar[str]
    """The prefix of the objects."""
    kind: ClassVar[Any]
    """The type of an entry."""

    def __init__(self, store: ObjectStore, rng: random.Random, may_delete: MayDelete) -> None:
        self._store, self._rng, self._may_delete = store, rng, may_delete
        self._life = UNLISTED
        self._objects: dict[str, RecordedObject] = {}
        """This life's by key; first those that were not checked for the longest time."""
        self._older: list[str] = []
        """The keys of those that this life took over."""
        self._runs = self._checks = 0
        """Since the last list; how many entries may be checked."""

    @abc.abstractmethod
    async def waiting(self, most: int) -> Sequence[Waiting]:
        """Return at most so many rows that the bucket does not have yet."""

    @abc.abstractmethod
    def entries(self, waiting: Sequence[Waiting]) -> list[Entry]:
        """Return what an object gets of them."""

    @abc.abstractmethod
    async def forget(self, token: JobToken, waiting: Sequence[Waiting]) -> None:
        """The bucket has them."""

    @abc.abstractmethod
    async def in_use(self, entries: Sequence[Entry]) -> list[bool]:
        """Return whether a rebuild would need each of them."""

    async def record(self, life: int, lease: Lease) -> None:
        """Move what waits. FencedError if the lease is lost; else as metastore and store."""
        if life != self._life or self._runs >= RUNS_PER_LIST:
            await self._begin(life, lease)
        self._runs += 1
        self._checks += CHECKS_PER_RUN
        while waiting := await self.waiting(ENTRIES_PER_OBJECT):
            await self._write(self.entries(waiting), life)
            self._checks += CHECKS_PER_ENTRY * len(waiting)
            await self.forget(lease.token, waiting)
        if self._older and await self._may_delete(lease.token):
            await self._store.delete_many(self._older)
            self._older = []
        for group in joined(list(self._objects.values())):
            if not await self._may_delete(lease.token):
                return
            await self._join(group)
            await lease.save_progress(f"life={life} joined={len(group)}")
        await self._check(lease)

    async def _begin(self, life: int, lease: Lease) -> None:
        """List, and take over the objects of earlier ones: once in each life, by the first worker.

        UnavailableError if a worker of the old life joins its objects meanwhile: nothing is taken over then.
        """
        listed = await list_recorded(self._store, self.prefix)
        older = [found for found in listed if found.life < life]
        self._life = UNLISTED  # until all of it is done
        self._objects = {found.key: found for found in listed if found.life == life}
        if older and await newest_taken_over(self._store, self.prefix) < life:
            entries: set[Entry] = set()
            for found in older:
                stored = await self._read(found)
                if len(stored) < found.entries:
                    raise UnavailableError(f"an object of an earlier life is gone, to be tried again: key={found.key}")
                entries.update(stored)
            await self._write(await self._used(_ordered(entries)), life)
            await note_taken_over(self._store, self.prefix, life)
            await lease.save_progress(f"life={life} taken_over={len(older)}")
        self._older = [found.key for found in older]
        self._life, self._runs = life, 0

    async def _check(self, lease: Lease) -> None:
        """Write objects again of which half is not in use any more, in turn."""
        for found in list(self._objects.values()):
            if found.entries > self._checks:
                return
            self._checks -= found.entries
            stored = await self._read(found)
            kept = await self._used(_ordered(stored))
            if 2 * len(kept) <= len(stored):
                if not await self._may_delete(lease.token):
                    return
                await self._replace([found], kept)
                await lease.save_progress(f"life={self._life} checked={len(stored)} kept={len(kept)}")
            else:
                self._objects[found.key] = self._objects.pop(found.key)
        self._checks = 0  # all are checked

    async def _join(self, group: Sequence[RecordedObject]) -> None:
        """One object instead of these, with what is still in use."""
        entries = {one for found in group for one in await self._read(found)}
        await self._replace(group, await self._used(_ordered(entries)))

    async def _replace(self, group: Sequence[RecordedObject], kept: Sequence[Entry]) -> None:
        await self._write(kept, self._life)
        await self._store.delete_many([found.key for found in group])
        for found in group:
            self._objects.pop(found.key, None)

    async def _write(self, entries: Sequence[Entry], life: int) -> None:
        for start in range(0, len(entries), ENTRIES_PER_OBJECT):
            some = entries[start : start + ENTRIES_PER_OBJECT]
            written = await write_entries(self._store, self.prefix, life, self._name(), some)
            self._objects[written.key] = written

    async def _read(self, found: RecordedObject) -> list[Entry]:
        """Nothing of an object that is gone: another worker has written its entries again."""
        try:
            return await read_entries(self._store, found.key, self.kind)
        except NotFoundError:
            return []

    async def _used(self, entries: Sequence[Entry]) -> list[Entry]:
        kept: list[Entry] = []
        for start in range(0, len(entries), PROBES_PER_CALL):
            some = entries[start : start + PROBES_PER_CALL]
            kept += [one for one, is_there in zip(some, await self.in_use(some), strict=True) if is_there]
        return kept

    def _name(self) -> uuid.UUID:
        return uuid.UUID(int=self._rng.getrandbits(128), version=4)


def _ordered(entries: Iterable[Any]) -> list[Any]:
    """Entries of each kind can be compared."""
    return sorted(entries)


def joined(objects: Sequence[RecordedObject]) -> list[list[RecordedObject]]:
    """Return which objects of one life become one: JOIN_AT of one size class. Pure."""
    classes: dict[int, list[RecordedObject]] = defaultdict(list)
    for found in objects:
        if found.entries < ENTRIES_PER_OBJECT:
            classes[found.entries.bit_length() // 4].append(found)
    return [some for some in classes.values() if len(some) >= JOIN_AT]


class OutcomeRecorder(Recorder[EndedTransaction, TransactionOutcome]):
    """How transactions ended."""

    prefix = PREFIX
    kind = TransactionOutcome

    def __init__(self, api: OutcomeApi, store: ObjectStore, rng: random.Random, may_delete: MayDelete) -> None:
        super().__init__(store, rng, may_delete)
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

    A driver writes the same record before its first chunk (metastore/recorded_objects.py): the job adds what a killed
    driver left, and keeps the objects few.
    """

    prefix = recorded_objects.PREFIX
    kind = uuid.UUID

    def __init__(self, api: OutcomeApi, store: ObjectStore, rng: random.Random, may_delete: MayDelete) -> None:
        super().__init__(store, rng, may_delete)
        self._api = api
        self._is_marked = False

    async def record(self, life: int, lease: Lease) -> None:
        """As Recorder; then the bucket says that all is recorded."""
        await super().record(life, lease)
        if not self._is_marked:
            if not await recorded_objects.are_recorded(self._store):
                await self._store.put(recorded_objects.RECORDED, b"")
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


class OutcomeJob:
    """A jobs.runner.JobHandler."""

    def __init__(self, api: Metastore, store: ObjectStore, rng: random.Random, clock: Clock) -> None:
        self._api, self._store = api, store
        self._recorders = (
            OutcomeRecorder(api.outcomes, store, rng, self._may_delete),
            BulkDecisionRecorder(api.outcomes, store, rng, self._may_delete),
        )
        self._shares = ShareRecorder(api.groups, store, clock)
        self._runs = self._ask_again = 0
        self._allowed_in = -1
        """The run in which deletion was allowed."""

    async def __call__(self, job: Job, lease: Lease) -> None:
        """Record all. FencedError if the lease is lost; else as metastore and store."""
        self._runs += 1
        life = self._api.life.named_life
        if life == NO_LIFE:
            return  # the lease is lost, too
        for recorder in self._recorders:
            await recorder.record(life, lease)
        await self._shares.record(life, lease.token.epoch)

    async def _may_delete(self, token: JobToken) -> bool:
        """Ask once in a run; after a refusal, which is logged, not again for RUNS_PER_ASK."""
        if self._allowed_in != self._runs and self._runs >= self._ask_again:
            if await permit(self._api.files, self._store, token) is not None:
                self._allowed_in = self._runs
            else:
                self._ask_again = self._runs + RUNS_PER_ASK
        return self._allowed_in == self._runs
