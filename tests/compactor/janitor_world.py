"""Files that are live, become dead and are deleted: the real metastore, a bucket in memory, a manual clock.

Fault model: `Tripwire` wraps the metastore and the bucket and kills the worker before or after its n-th
call; `DoubtfulStore` loses answers of deletions, confirms only some, and lists what it held before.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from headrace.compactor.janitor import Janitor, JanitorMetrics
from headrace.compactor.permit import Undecided
from headrace.compactor.sweeper import Sweeper
from headrace.jobs.lease import Lease
from headrace.metastore.api.commit import FileAnswer, FileCommit
from headrace.metastore.api.jobs import Job
from headrace.metastore.api.retention import TO_HIGH_WATERMARK, LogStartTarget
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import OutcomeUnknownError
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ObjectInfo
from tests.manual_clock import ManualClock
from tests.metastore.commit_scenes import Scene, batch, open_scene
from tests.metastore.sessions import claim, move_time, session, set_for_cluster
from tests.nouns import NOUNS

HOUR = 3600
DELAY_MS = 4 * HOUR * 1000
DELAY_SECONDS = DELAY_MS / 1000
SETTLED_SECONDS = 75 * 60
"""How long a row is kept after its commit: nothing younger is deleted."""
LEASE_MS = 30_000

DELETIONS_MAX = 1_000
"""Calls, far beyond what any test needs."""


class Killed(BaseException):
    """The worker's process ends here: no code handles this."""


class DoubtfulStore(MemoryStore):
    """`lose_answers` of the next deletions; `refuse` deletes some keys never; `stale` replaces the next list."""

    def __init__(self) -> None:
        super().__init__()
        self.lose_answers = 0
        self.refuse: set[str] = set()
        self._calls = 0
        self.stale: list[ObjectInfo] | None = None

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        self._calls += 1
        assert self._calls < DELETIONS_MAX, "deletes the same objects without end"
        confirmed = await super().delete_many([key for key in keys if key not in self.refuse])
        if self.lose_answers:
            self.lose_answers -= 1
            raise OutcomeUnknownError("answer lost")
        return confirmed

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        if self.stale is not None:
            stale, self.stale = self.stale, None
            for info in stale:
                yield info
            return
        async for info in super().list_objects(prefix, start_after=start_after):
            yield info

    async def keys(self) -> set[str]:
        """Return the keys of the segment files."""
        return {info.key async for info in MemoryStore.list_objects(self, "segments/")}


class Tripwire:
    """Passes calls on; kills at the `at`-th one, before it or after it happened. Shared by several targets."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.left = at
        self.after = after

    def over(self, target: Any) -> Any:
        """`target`, with its async calls counted."""
        return _Wired(self, target)

    async def trip(self) -> None:
        """Do what happens at that call."""
        raise Killed


class PausingWire(Tripwire):
    """Stops the worker there until `resume` is set, as SIGSTOP does."""

    def __init__(self, at: int, *, after: bool) -> None:
        super().__init__(at, after=after)
        self.reached, self.resume = asyncio.Event(), asyncio.Event()

    async def trip(self) -> None:
        self.reached.set()
        await self.resume.wait()


class _Wired:
    def __init__(self, wire: Tripwire, target: Any) -> None:
        self._wire = wire
        self._target = target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name in NOUNS:
            return _Wired(self._wire, found)
        if name == "list_objects" or not callable(found):
            return found

        async def call(*args: Any, **more: Any) -> Any:
            self._wire.left -= 1
            is_it = self._wire.left == 0
            if is_it and not self._wire.after:
                await self._wire.trip()
            result = await found(*args, **more)
            if is_it and self._wire.after:
                await self._wire.trip()
            return result

        return call


class JanitorWorld:
    """One topic of four partitions; a file is put whole and committed with a batch per partition."""

    def __init__(self, metastore: PostgresMetastore, url: str, scene: Scene, rng: random.Random) -> None:
        self.metastore, self.url, self.scene, self.rng = metastore, url, scene, rng
        self.store = DoubtfulStore()
        self.clock = ManualClock()
        self.registry = CollectorRegistry()
        self.metrics = JanitorMetrics(self.registry, Undecided(self.registry))
        self.ahead_seconds = 0.0
        self._numbers = iter(range(1, 1 << 30))

    @classmethod
    async def open(cls, metastore: PostgresMetastore, url: str, seed: int = 1) -> JanitorWorld:
        await set_for_cluster(metastore, "file.delete.delay.ms", DELAY_MS)
        return cls(metastore, url, await open_scene(metastore, 4), random.Random(seed))

    async def delete_at_once(self) -> None:
        """Set the cluster's file.delete.delay.ms to 0."""
        await set_for_cluster(self.metastore, "file.delete.delay.ms", 0)

    async def advance(self, seconds: float) -> None:
        """Move the metastore's clock."""
        self.ahead_seconds += seconds
        async with session(self.url) as raw:
            await move_time(raw, self.ahead_seconds)

    def new_file(self, *, age_seconds: float = 0, partitions: Sequence[int] = (0, 1, 2, 3)) -> FileCommit:
        """Not put yet, not committed yet."""
        born = time.time_ns() // 1_000_000 + round((self.ahead_seconds - age_seconds) * 1000)
        batches = [batch(self.scene.keys[p])._replace(position=i * 100) for i, p in enumerate(partitions)]
        return FileCommit(new_file_id(born, self.rng), 450, batches)

    async def put(self, file: FileCommit) -> uuid.UUID:
        await self.store.put(object_key(file.file_id), b"x" * file.size)
        return file.file_id

    async def commit(self, file: FileCommit) -> FileAnswer:
        (answer,) = await self.scene.commit(file)
        return answer

    async def add_file(self, **more: Any) -> uuid.UUID:
        """Put and committed."""
        file = self.new_file(**more)
        await self.put(file)
        await self.commit(file)
        return file.file_id

    async def kill_all(self) -> None:
        """Every existing file becomes dead now."""
        targets = [LogStartTarget(key, TO_HIGH_WATERMARK) for key in self.scene.keys]
        await self.metastore.retention.move_log_starts(targets, max_extents=10_000)

    async def files(self) -> dict[uuid.UUID, int]:
        """State by id, of every row."""
        return {f.file_id: int(f.state) for f in await self.metastore.reports.audit_files(uuid.UUID(int=0), 10_000)}

    async def claim(self, kind: str) -> tuple[Job, Lease]:
        """A lease of a job of that kind, which is there then."""
        job = await claim(self.metastore, kind, lease_ms=LEASE_MS)
        return job, Lease(self.metastore.jobs, job, self.clock, claimed_at=self.clock.monotonic(), lease_ms=LEASE_MS)

    async def run(self, kind: str, wire: Tripwire | None = None) -> None:
        """One run of the job; raises what it raises. A killed one leaves its lease to run out."""
        job, lease = await self.claim(kind)
        api: Any = self.metastore if wire is None else wire.over(self.metastore)
        store: Any = self.store if wire is None else wire.over(self.store)
        make: Any = {"delete": Janitor, "sweep": Sweeper}[kind]
        try:
            await make(api, store, self.metrics)(job, lease)
        except Killed:
            await self.advance(LEASE_MS / 1000 + 1)
            raise
        except Exception:
            await self.metastore.jobs.release_job(job.token)
            raise
        await self.metastore.jobs.finish_job(job.token)

    async def is_killed(self, kind: str, at: int, *, after: bool) -> bool:
        """Return whether a run of the job comes to its call number `at`, where it is killed."""
        try:
            await self.run(kind, Tripwire(at, after=after))
        except Killed:
            return True
        return False

    async def taken(self, lease: Lease) -> list[uuid.UUID]:
        """Dead files that the holder of the lease is given to delete."""
        found = await self.metastore.files.take_dead_files(lease.token, self.metastore.incarnation_id, limit=10)
        return [file.file_id for file in found]

    async def condemned(self, lease: Lease, *file_ids: uuid.UUID) -> list[uuid.UUID]:
        """Those of these ids that the holder of the lease is given to sweep, regardless of their age."""
        life = self.metastore.incarnation_id
        return await self.metastore.files.condemn_files(lease.token, life, list(file_ids), min_age_ms=0)

    def counted(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"headrace_{name}", labels) or 0.0
