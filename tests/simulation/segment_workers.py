"""Compaction, janitor and cleanup of a cluster with keys for merged files: the real jobs, by workers that fail.

Fault model: as remote.py and bucket.py at every call of a job. Workers are killed and paused at any moment; a lease may
end while its holder continues, and the next worker does the same job under a higher epoch. Log starts, deletions of
topics, commits and the sweeper continue meanwhile; half of the swap calls arrive once more, often after a log start
moved past some of their inputs; the database's clock may jump beyond the age at which rows go.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from headrace.compactor.compact import CompactionMetrics, Compactor
from headrace.compactor.janitor import Janitor, JanitorMetrics
from headrace.compactor.merge import MergeLimits
from headrace.compactor.permit import Undecided
from headrace.compactor.plan import CompactionJob, encode
from headrace.compactor.segments import SegmentCleanup, SegmentCleanupMetrics
from headrace.config.settings import Settings
from headrace.jobs.kinds import CLEAN_UP_SEGMENTS, COMPACT, DELETE_DEAD_FILES
from headrace.jobs.lease import Lease
from headrace.metastore.api.compaction import NewFile, Swap, SwapOutcome
from headrace.metastore.api.jobs import Job, JobToken, NewJob
from headrace.metastore.inline_store import InlineStore
from headrace.storage.errors import FencedError, HeadraceError
from headrace.storage.file_id import SEGMENTS, file_id_of, is_inline
from headrace.storage.objects.store import ObjectStore
from tests.model.segment_api import LifecycleApi
from tests.model.segment_end_model import ModelLifecycle
from tests.nouns import NOUNS
from tests.simulation.bucket import BucketLine
from tests.simulation.check_segments import LifecycleJudge
from tests.simulation.cleaner import Worker
from tests.simulation.compactor import places_of
from tests.simulation.faults import Fault
from tests.simulation.problems import Kind
from tests.simulation.remote import WRITES, Remote, run_at_once

if TYPE_CHECKING:
    from tests.simulation.world import World

LATENCY = (0.0005, 0.006)
BETWEEN_SECONDS = (0.01, 0.15)
LEASES_MS = (60, 300, 300, 2_000)
FIRST_OWNER = 2_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ALL = 1_000
CALM_SECONDS = 30.0
AGAIN_SECONDS = (0.0, 0.2)
"""After its first copy, a call arrives again."""


class SimulatedLifecycleApi(LifecycleApi):
    """The metastore's part; the journal follows its swaps."""

    def __init__(self, world: World, model: ModelLifecycle) -> None:
        super().__init__(model)
        self._world, self._rng = world, random.Random(world.plan.seed + 1)

    async def swap_extents(self, token: JobToken, file: NewFile, swaps: Sequence[Swap]) -> list[SwapOutcome]:
        outcomes = self._swap(token, file, swaps)
        if not self._world.is_calm and self._rng.random() < 0.5:
            self._world.happens_late(self._rng.uniform(*AGAIN_SECONDS), self._again, token, file, swaps, outcomes)
        return outcomes

    def _again(self, token: JobToken, file: NewFile, swaps: Sequence[Swap], before: list[SwapOutcome]) -> None:
        """Another copy of the call; its answer must be the first one, as long as the lease holds."""
        if self._rng.random() < 0.7:
            self._move_a_log_start(self._rng.choice(swaps))
        with suppress(FencedError):
            after = self._swap(token, file, swaps)
            if after != before:
                self._world.report(Kind.LIFECYCLE, f"a repeated swap has another answer: {before} {after} {file}")

    def _swap(  # type: ignore[override] # a worker's own
        self, token: JobToken, file: NewFile, swaps: Sequence[Swap]
    ) -> list[SwapOutcome]:
        outcomes, new = self.lifecycle.swap(token, file.file_id, swaps)
        self.model.announce_swaps(new)
        self._world.note("swapped", str(file.file_id), outcomes)
        self._world.database.follow(new, places_of(swaps, self._world.bucket.ever_put[file.file_id]))
        return outcomes

    def _move_a_log_start(self, swap: Swap) -> None:
        """Past some of the inputs."""
        if swap.partition_key not in self.model.partitions or len(swap.inputs) == 1:
            return
        start = self._rng.choice(swap.inputs[:-1]).last_offset + 1
        if start > self.model.partitions[swap.partition_key].log_start_offset:
            self._world.note("log start", swap.partition_key, start)
            self._world.database.move_log_start(self._world.database.metadata.place(swap.partition_key), start)


class ApiLine:
    """One worker's way to the metastore: every call may fail, and is judged once it happened."""

    def __init__(self, server: Any, remote: Remote, judge: LifecycleJudge) -> None:
        self._server, self._remote, self._judge = server, remote, judge

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self
        asked = getattr(self._server, name)

        def at_the_server(*args: Any, **more: Any) -> Any:
            try:
                return run_at_once(asked(*args, **more))
            finally:
                self._judge.look(name)

        async def call(*args: Any, **more: Any) -> Any:
            return await self._remote.call(lambda: at_the_server(*args, **more), WRITES)

        return call


class JanitorBucketLine(BucketLine):
    """One that deletes."""

    def __init__(self, world: World, worker: Any, rng: random.Random, judge: LifecycleJudge) -> None:
        super().__init__(world, worker, rng)
        self._judge = judge

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        def deleted() -> list[str]:
            for key in keys:
                if not key.startswith(SEGMENTS):  # the names of inline files, next to a merged one
                    run_at_once(self._world.bucket.notes.delete_many([key]))
                    continue
                self._judge.deleted(file_id_of(key))
                self._world.bucket.remove(file_id_of(key))
            return list(keys)

        return await self._remote.call(deleted, WRITES)


class SegmentWorkers:
    """Planner, job loop, and the processes of all workers."""

    def __init__(self, world: World) -> None:
        assert isinstance(world.database.model, ModelLifecycle)
        self.model = world.database.model
        self.judge = LifecycleJudge(world, self.model)
        self._world, self._rng = world, random.Random(world.plan.seed)
        self._api = SimulatedLifecycleApi(world, self.model)
        self._jobs = 0
        self._running: dict[asyncio.Task[None], Worker] = {}

    async def run(self) -> None:
        """Jobs as long as things go wrong, several at a time."""
        rng = self._rng
        while not self._world.is_calm:
            await asyncio.sleep(rng.uniform(*BETWEEN_SECONDS))
            kind = rng.choice(
                (COMPACT.name, COMPACT.name, COMPACT.name, DELETE_DEAD_FILES.name, CLEAN_UP_SEGMENTS.name)
            )
            if kind != COMPACT.name or rng.random() < 0.6:
                self._add(kind)
            self._begin(kind, rng.choice(LEASES_MS))
            if rng.random() < 0.1:
                self.model.purge(rng.choice((1, ALL)))
                self.judge.look("purge")
            if self._running and rng.random() < 0.15:
                worker = self._running[rng.choice(list(self._running))]
                rng.choice((worker.kill, worker.freeze))(None)

    async def settle(self) -> None:
        """All is calm: everything comes to its end, and then nothing is under way. Not after a wrong call."""
        if self.judge.is_wrong:
            return
        if self._running:
            await asyncio.wait(list(self._running), timeout=CALM_SECONDS)
        await self._world.wait_for_the_late()
        clock = self._world.database.clock
        clock.jump(HOUR_MS)
        while await self._do(COMPACT.name):
            pass
        if inline := sorted(filter(is_inline, self._live_files())):
            self._enqueue(COMPACT.name, encode(CompactionJob(tuple(inline), 1)))
            await self._do(COMPACT.name)
        for _ in range(3):
            while self.model.purges:
                self.model.purge(ALL)
            await self._house(CLEAN_UP_SEGMENTS.name)
            clock.jump(2 * HOUR_MS)
            await self._house(DELETE_DEAD_FILES.name)
            await self._house(CLEAN_UP_SEGMENTS.name)
            clock.jump(DAY_MS + 60_000)
            await self._house(CLEAN_UP_SEGMENTS.name)
        self.judge.look("settled")
        self.judge.rest()

    async def _house(self, kind: str) -> None:
        self._add(kind)
        while await self._do(kind):
            pass

    async def _do(self, kind: str) -> bool:
        task = self._begin(kind, 60_000)
        if task is not None:
            await asyncio.wait([task], timeout=CALM_SECONDS)
        return task is not None

    def _live_files(self) -> set[uuid.UUID]:
        return {e.source for p in self.model.partitions.values() for e in p.visible_extents}

    def _add(self, kind: str) -> None:
        payload = b""
        if kind == COMPACT.name:
            if not (found := self._live_files()):
                return
            files = sorted(self._rng.sample(sorted(found), self._rng.randint(1, len(found))))
            payload = encode(CompactionJob(tuple(files), self._rng.choice((1, 2))))
        self._enqueue(kind, payload)

    def _enqueue(self, kind: str, payload: bytes) -> None:
        self._jobs += 1
        run_at_once(self.model.jobs.enqueue_jobs([NewJob(kind, str(self._jobs), payload)]))

    def _begin(self, kind: str, lease_ms: int) -> asyncio.Task[None] | None:
        """A worker for the next job that is due, if there is one."""
        world, rng = self._world, random.Random(self._rng.getrandbits(64))
        job: Job | None = run_at_once(self.model.jobs.claim_job("worker", [kind], lease_ms))
        if job is None:
            return None
        world.faults.count(Fault.WORKED)
        world.note("work", kind, job.token, lease_ms)
        worker: Any = Worker(world, FIRST_OWNER + job.token.epoch, rng)
        remote = Remote(world, worker, "metastore", LATENCY, rng)
        api: Any = ApiLine(self._api, remote, self.judge)
        store = InlineStore(JanitorBucketLine(world, worker, rng, self.judge), api)
        jobs: Any = ApiLine(self.model.jobs, remote, self.judge)
        task = world.loop.create_task(
            self._work(job, self._handler(kind, api, store, rng), jobs), context=worker.context
        )
        self._running[task] = worker
        task.add_done_callback(self._running.pop)
        return task

    def _handler(self, kind: str, api: Any, store: ObjectStore, rng: random.Random) -> Any:
        registry = CollectorRegistry()
        if kind == DELETE_DEAD_FILES.name:
            return Janitor(api, store, JanitorMetrics(registry, Undecided(registry)))
        if kind == CLEAN_UP_SEGMENTS.name:
            return SegmentCleanup(api, Settings(), SegmentCleanupMetrics(registry)).handle
        limits = MergeLimits(file_bytes=rng.choice((400, 1 << 20)), extent_bytes=rng.choice((300, 1_000, 1 << 20)))
        shards, clock = self._world.plan.shards, self._world.clock
        return Compactor(store, api, shards, limits, clock, rng, CompactionMetrics(registry)).handle

    async def _work(self, job: Job, handler: Any, jobs: Any) -> None:
        clock = self._world.clock
        lease = Lease(jobs, job, clock, claimed_at=clock.monotonic(), lease_ms=1)  # it is not renewed
        try:
            await handler(job, lease)
            await jobs.finish_job(job.token)
        except FencedError:
            self._world.note("fenced", job.token)
        except HeadraceError as error:
            self._world.note("job failed", job.token, type(error).__name__)
            with suppress(HeadraceError):
                await jobs.fail_job(job.token, str(error), 0)
        except Exception as error:
            self._world.report(Kind.CRASHED, f"job {job.kind}: {error!r}")
