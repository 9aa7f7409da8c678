"""The mover of inline files: the real planner and the real merge job, by workers that fail, and the slots.

Place: next to agents, which turn the slots too; compactor.py merges any extents besides. Where merged files have keys,
segment_workers.py moves inline files as it merges others, and this module turns the slots only. Reads go through
InlineStore, as in a process with the role compactor.
Fault model: as remote.py and bucket.py at every call of a job. Workers are killed and paused at any moment; a lease may
end while its holder continues, and the next worker does the same job under a higher epoch. A swap may arrive twice.
Slots are small and few, and keep dead files for a moment only, so that readers come too late.
Invariant: once all is calm, the metastore holds no bytes: everything live was moved, every slot can be emptied.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from headrace.agent.produce.inline_watch import SLOT_SHARE
from headrace.compactor.compact import CompactionMetrics, Compactor
from headrace.compactor.merge import MergeLimits
from headrace.compactor.planner import Planner, PolicyLimits
from headrace.jobs.kinds import COMPACT, PLAN_COMPACTION
from headrace.jobs.lease import Lease
from headrace.metastore.api.compaction import FileFacts, LiveExtents, NewFile, Swap, SwapOutcome, WaitingFiles
from headrace.metastore.api.inline import InlineRange, InlineState
from headrace.metastore.api.jobs import Job, JobState, JobToken, NewJob
from headrace.metastore.inline_store import InlineStore
from headrace.storage.errors import FencedError, HeadraceError
from headrace.storage.file_id import born_ms, level_of
from tests.compactor.model_api import ModelCompactionApi
from tests.nouns import NOUNS, nouns
from tests.simulation.bucket import BucketLine
from tests.simulation.cleaner import Worker
from tests.simulation.compactor import places_of
from tests.simulation.faults import Fault
from tests.simulation.problems import Kind
from tests.simulation.remote import READS, WRITES, Remote, run_at_once

if TYPE_CHECKING:
    from tests.simulation.database import Database
    from tests.simulation.world import World

LATENCY = (0.0005, 0.006)
BETWEEN_SECONDS = (0.005, 0.08)
MINUTES_PACE = 20
"""Factor on these pauses in schedules of minutes, in which clients send seldom."""
LEASES_MS = (60, 300, 300, 2_000)
AGAIN_SECONDS = (0.0, 0.3)
CALM_SECONDS = 30.0
HOUR_MS = 3_600_000
FIRST_OWNER = 3_000_000
ROUNDS = 4
READING = {"live_extents", "waiting_files", "unfinished_payloads", "inline_state", "read_inline"}
"""Calls that change nothing."""


class MoverApi(ModelCompactionApi):
    """What planner and job ask a server for, at the instant of a call."""

    def __init__(self, world: World, server: Database) -> None:
        super().__init__(server.model)
        self._world, self._server = world, server

    async def waiting_files(self, next_file: uuid.UUID, limit: int) -> WaitingFiles:
        """Return all live files."""
        live: dict[uuid.UUID, int] = {}
        for partition in self.model.partitions.values():
            for extent in partition.extents:
                live[extent.source] = live.get(extent.source, 0) + extent.length
        now_ms = self.model.clock.wall_ms()
        return WaitingFiles(
            [FileFacts(f, level_of(f), size, size, now_ms - born_ms(f)) for f, size in sorted(live.items())], next_file
        )

    async def live_extents(self, file_ids: Sequence[uuid.UUID]) -> LiveExtents:
        """See metastore.api.compaction.CompactionApi."""
        found = await super().live_extents(file_ids)
        place = self._server.metadata.place
        partitions = [each._replace(topic_id=place(each.partition_key).topic.topic_id) for each in found.partitions]
        return found._replace(partitions=partitions)

    async def swap_extents(self, token: JobToken, file: NewFile, swaps: Sequence[Swap]) -> list[SwapOutcome]:
        """See metastore.api.compaction.CompactionApi: only while the lease holds."""
        self.assert_lease(token)
        outcomes, new = self.model.decide_swaps(file.file_id, swaps, token=token)
        if outcomes is None:
            raise FencedError(f"file id is not to be had: file={file.file_id}")
        self.model.announce_swaps(new)
        self._world.note("moved", str(file.file_id), outcomes)
        if not self.model.jobs.is_held(token):
            self._world.report(Kind.LIFECYCLE, f"a swap of a lease that has ended: {token} file={file.file_id}")
        self._server.follow(new, places_of(swaps, self._world.bucket.ever_put[file.file_id]))
        return outcomes

    def assert_lease(self, token: JobToken) -> None:
        """FencedError unless that lease holds."""
        self.model.jobs.assert_held(token)

    async def unfinished_payloads(self, *kinds: str) -> list[list[bytes]]:
        """See metastore.api.compaction.CompactionApi."""
        unfinished = (JobState.WAITING, JobState.LEASED)
        jobs = self.model.jobs.jobs
        return [[job.payload for job in jobs if job.kind == kind and job.state in unfinished] for kind in kinds]

    async def inline_state(self) -> InlineState:
        """See metastore.api.inline.InlineApi."""
        return await self.model.inline_state()

    async def read_inline(self, ranges: Sequence[InlineRange]) -> list[bytes | None]:
        """See metastore.api.inline.InlineApi."""
        return await self.model.read_inline(ranges)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model.jobs, name)


class MoverLine:
    """One worker's way to the metastore: every call may fail. It names the life that it began in."""

    def __init__(self, world: World, remote: Remote) -> None:
        self._world, self._remote, self.life = world, remote, world.database.model.life

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self

        def at_the_server(*args: Any, **more: Any) -> Any:
            server = self._world.database.reached(writes=name not in READING)
            if name not in READING:
                server.assert_life(self.life)
            answer = run_at_once(getattr(MoverApi(self._world, server), name)(*args, **more))
            if name == "swap_extents" and not self._world.is_calm and self._world.mover_rng.random() < 0.3:
                self._world.happens_late(self._world.mover_rng.uniform(*AGAIN_SECONDS), again, args, answer)
            return answer

        def again(args: Any, answer: Any) -> None:
            """Another copy of a swap call; its answer must be the first one, as long as the lease holds."""
            with suppress(HeadraceError):
                server = self._world.database.reached(writes=True)
                server.assert_life(self.life)
                after = run_at_once(MoverApi(self._world, server).swap_extents(*args))
                if after != answer:
                    self._world.report(Kind.LIFECYCLE, f"a repeated swap has another answer: {answer} {after}")

        async def call(*args: Any, **more: Any) -> Any:
            return await self._remote.call(lambda: at_the_server(*args, **more), READS if name in READING else WRITES)

        return call

    async def turn(self, slot_bytes: int, slot_ms: int) -> int:
        """Turn the slots."""
        life = self.life
        emptied: int = await self._remote.call(
            lambda: self._world.database.reached(writes=True).rotate(life, slot_bytes, slot_ms), WRITES
        )
        return emptied


class SimulatedMover:
    """Planner, job loop, and the processes of all workers."""

    def __init__(self, world: World) -> None:
        self._world, self._rng = world, world.mover_rng
        self._plans = self._owners = 0
        self._running: dict[asyncio.Task[None], Worker] = {}

    async def run(self) -> None:
        """Jobs as long as things go wrong, several at a time, and turns of the slots."""
        rng, pace = self._rng, MINUTES_PACE if self._world.plan.moves else 1
        while not self._world.is_calm:
            await asyncio.sleep(pace * rng.uniform(*BETWEEN_SECONDS))
            kind = rng.choice((PLAN_COMPACTION.name, COMPACT.name, COMPACT.name, None))
            if kind is None or self._world.workers:
                self._spawn(self._turn)
            else:
                if kind == PLAN_COMPACTION.name:
                    self._plan()
                self._begin(kind, rng.choice(LEASES_MS))
            if self._running and rng.random() < 0.15:
                worker = self._running[rng.choice(list(self._running))]
                rng.choice((worker.kill, worker.freeze))(None)

    async def settle(self) -> None:
        """All is calm: everything is moved because it is asked for, and the slots are emptied. Not after a problem."""
        if self._world.problems:
            return
        if self._running:
            await asyncio.wait(list(self._running), timeout=CALM_SECONDS)
        await self._world.wait_for_the_late()
        server = self._world.database
        for _ in range(ROUNDS):
            server.clock.jump(HOUR_MS)
            if not self._world.workers:
                await self._move_all()
            server.clock.jump(HOUR_MS)
            for _ in server.model.inline_slots:
                await self._ended(self._spawn(self._turn))
        for file_id in server.model.inline_files:
            self._world.report(Kind.UNACCOUNTED, f"the metastore still holds a file that was moved: file={file_id}")

    async def _move_all(self) -> None:
        server = self._world.database
        server.ask_inline_move(server.model.life)
        self._plan()
        while await self._do(PLAN_COMPACTION.name) or await self._do(COMPACT.name):
            pass

    async def _do(self, kind: str) -> bool:
        task = self._begin(kind, HOUR_MS)
        if task is not None:
            await self._ended(task)
        return task is not None

    async def _ended(self, task: asyncio.Task[None]) -> None:
        if (await asyncio.wait([task], timeout=CALM_SECONDS))[1]:
            self._world.report(Kind.STUCK, "the mover does not come to an end")

    def _plan(self) -> None:
        self._plans += 1
        jobs = self._world.database.model.jobs
        run_at_once(jobs.enqueue_jobs([NewJob(PLAN_COMPACTION.name, str(self._plans), max_attempts=3)]))

    def _begin(self, kind: str, lease_ms: int) -> asyncio.Task[None] | None:
        """A worker for the next job that is due, if there is one."""
        server = self._world.database
        if not server.is_up or server.timeline != server.begun_timeline:
            return None
        job: Job | None = run_at_once(server.model.jobs.claim_job("mover", [kind], lease_ms))
        if job is None:
            return None
        self._world.faults.count(Fault.MOVED_INLINE)
        self._world.note("move", kind, job.token, lease_ms)
        return self._spawn(self._work, job)

    def _spawn(self, work: Any, *args: Any) -> asyncio.Task[None]:
        """Run it in a separate process."""
        world, rng = self._world, random.Random(self._rng.getrandbits(64))
        self._owners += 1
        worker: Any = Worker(world, FIRST_OWNER + self._owners, rng)
        line = MoverLine(world, Remote(world, worker, "metastore", LATENCY, rng))
        store = InlineStore(BucketLine(world, worker, rng), nouns(line).inline)
        task: asyncio.Task[None] = world.loop.create_task(work(line, store, rng, *args), context=worker.context)
        self._running[task] = worker
        task.add_done_callback(self._running.pop)
        return task

    async def _turn(self, line: MoverLine, store: InlineStore, rng: random.Random) -> None:
        settings = self._world.plan.settings
        with suppress(HeadraceError):
            await line.turn(settings.low_latency_held_max_bytes // SLOT_SHARE, settings.low_latency_move_ms)

    async def _work(self, line: Any, store: InlineStore, rng: random.Random, job: Job) -> None:
        clock = self._world.clock
        lease = Lease(line, job, clock, claimed_at=clock.monotonic(), lease_ms=1)  # it is not renewed
        metrics = CompactionMetrics(CollectorRegistry())
        handle = Planner(line, PolicyLimits.of(self._world.plan.settings), metrics).handle
        if job.kind == COMPACT.name:
            limits = MergeLimits(file_bytes=rng.choice((400, 1 << 20)), extent_bytes=rng.choice((300, 1_000, 1 << 20)))
            handle = Compactor(store, line, self._world.plan.shards, limits, clock, rng, metrics).handle
        try:
            await handle(job, lease)
            await line.finish_job(job.token)
        except FencedError:
            self._world.note("fenced", job.token)
        except HeadraceError as error:
            self._world.note("job failed", job.token, type(error).__name__)
            with suppress(HeadraceError):
                await line.fail_job(job.token, str(error), 0)
        except Exception as error:
            self._world.report(Kind.CRASHED, f"job {job.kind}: {error!r}")
