"""Cleaning by key: the real job (compactor/cleaning/job.py), by workers that are killed, paused and superseded.

Fault model: as remote.py and bucket.py at every call of a pass. A pass that takes too long is taken over by the next
worker, under a higher token, while it still runs; log starts, merges, leader epochs, commits and the sweeper continue
meanwhile. Files that a swap killed are deleted at once, half of the time.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import CollectorRegistry

from headrace.compactor.cleaning.job import Cleaner, CleaningTerms
from headrace.compactor.cleaning.key_map import BYTES_PER_KEY
from headrace.compactor.cleaning.metrics import CleaningMetrics
from headrace.compactor.cleaning.policy import CleaningJob, CleaningTask, encode_cleaning
from headrace.compactor.merge import MergeLimits
from headrace.jobs.lease import Lease
from headrace.metastore.api.cleaning import CleanablePartition, CleanedPartition
from headrace.metastore.api.compaction import DamagedExtent, NewFile, Swap, SwapOutcome
from headrace.metastore.api.jobs import Job, JobToken
from headrace.metastore.api.segments import NewSegment, StartOutcome
from headrace.storage.errors import FencedError, HeadraceError
from tests.compactor.model_api import ModelCleaningApi
from tests.nouns import nouns
from tests.simulation.bucket import BucketLine
from tests.simulation.faults import Fault
from tests.simulation.keyed import RETENTION_MS
from tests.simulation.loop import OWNER
from tests.simulation.problems import Kind
from tests.simulation.remote import READS, WRITES, Remote, run_at_once

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")

LATENCY = (0.0005, 0.006)
PAUSE_SECONDS = (0.1, 1.0)
BETWEEN_SECONDS = (0.02, 0.25)
TAKEN_OVER_AFTER_SECONDS = (0.2, 1.5)
FIRST_OWNER = 1_000_000
PLENTY = 1 << 20


class CleaningDatabase(ModelCleaningApi):
    """The metastore's part. `epoch`: of the present holder of the cleaning job; others are refused."""

    def __init__(self, world: World, rng: random.Random) -> None:
        super().__init__(world.database.model)
        self.epoch = 0
        self._world, self._rng = world, rng
        self._begun_ms: dict[int, int] = {}

    def begin(self, epoch: int, ends: Sequence[tuple[int, int]]) -> tuple[int, list[CleanablePartition]]:
        """cleanable_extents, for the holder with that epoch."""
        now_ms, found = run_at_once(self.cleanable_extents(ends))
        self._begun_ms[epoch] = now_ms
        for number, partition in enumerate(found):
            topic_id = self._world.metadata.place(partition.live.partition_key).topic.topic_id
            found[number] = partition._replace(live=partition.live._replace(topic_id=topic_id))
        return now_ms, found

    async def swap_cleaned_extents(
        self, token: JobToken, file: NewFile, swaps: Sequence[Swap], cleaned_offsets: Sequence[int]
    ) -> list[SwapOutcome]:
        self._assert_job(token)
        keys = [swap.partition_key for swap in swaps]
        self._world.keyed.changed(keys)  # by commits
        outcomes = await super().swap_cleaned_extents(token, file, swaps, cleaned_offsets)
        self._world.note("cleaned swapped", str(file.file_id), outcomes)
        self._world.keyed.changed(keys, self._begun_ms[token.epoch])
        if self._rng.random() < 0.5:
            for file_id in sorted({entry.file_id for swap in swaps for entry in swap.inputs}):
                self._world.sweeper.clean(file_id)
        return outcomes

    async def finish_cleaning(self, token: JobToken, cleaned: CleanedPartition) -> bool:
        self._assert_job(token)
        is_done = await super().finish_cleaning(token, cleaned)
        self._world.note("cleaned", token.epoch, cleaned.partition_key, cleaned.end, is_done)
        return is_done

    async def mark_uncleanable(self, token: JobToken, partition_key: int, why: str) -> None:
        self._assert_job(token)
        await super().mark_uncleanable(token, partition_key, why)

    def _assert_job(self, token: JobToken) -> None:
        if token.epoch != self.epoch:
            raise FencedError(f"simulated: the job has another holder: epoch={token.epoch}")


class CleaningLine:
    """The part of CleaningApi that a job needs, for one worker."""

    def __init__(self, server: CleaningDatabase, remote: Remote, epoch: int) -> None:
        self._server, self._remote, self._epoch = server, remote, epoch

    async def cleanable_extents(self, ends: Sequence[tuple[int, int]]) -> tuple[int, list[CleanablePartition]]:
        return await self._remote.call(lambda: self._server.begin(self._epoch, ends), READS)

    async def swap_cleaned_extents(
        self, token: JobToken, file: NewFile, swaps: Sequence[Swap], cleaned_offsets: Sequence[int]
    ) -> list[SwapOutcome]:
        wanted, relied = list(swaps), list(cleaned_offsets)
        answer: list[SwapOutcome] = await self._write(
            lambda: self._server.swap_cleaned_extents(token, file, wanted, relied)
        )
        return answer

    async def start_segments(
        self, token: JobToken, file_id: uuid.UUID, level: int, segments: Sequence[NewSegment]
    ) -> StartOutcome:
        answer: StartOutcome = await self._write(
            lambda: self._server.start_segments(token, file_id, level, list(segments))
        )
        return answer

    async def finish_lost_upload(self, token: JobToken, file_id: uuid.UUID) -> int:
        answer: int = await self._write(lambda: self._server.finish_lost_upload(token, file_id))
        return answer

    async def finish_cleaning(self, token: JobToken, cleaned: CleanedPartition) -> bool:
        answer: bool = await self._write(lambda: self._server.finish_cleaning(token, cleaned))
        return answer

    async def mark_uncleanable(self, token: JobToken, partition_key: int, why: str) -> None:
        await self._write(lambda: self._server.mark_uncleanable(token, partition_key, why))

    async def mark_damaged(self, token: JobToken, extents: Sequence[DamagedExtent]) -> None:
        """Keep no list of damage: jobs read the same extents again."""

    async def _write(self, call: Callable[[], Any]) -> Any:
        return await self._remote.call(lambda: run_at_once(call()), WRITES)


class Worker:
    """The process of one pass; faults of a step strike it as they do an agent."""

    def __init__(self, world: World, owner: int, rng: random.Random) -> None:
        self.agent = self
        self.context = contextvars.copy_context()
        self.context.run(OWNER.set, owner)
        self._world, self._owner, self._rng = world, owner, rng

    def kill(self, process: object) -> None:
        self._world.note("cleaner killed", self._owner)
        self._world.loop.kill(self._owner)

    def freeze(self, process: object) -> None:
        self._world.note("cleaner paused", self._owner)
        self._world.loop.freeze(self._owner)
        self._world.happens_late(self._rng.uniform(*PAUSE_SECONDS), self._world.loop.thaw, self._owner)


class SimulatedCleaner:
    """Planner and job loop."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(world.plan.seed)
        self.database = CleaningDatabase(world, self._rng)

    async def run(self) -> None:
        """Pass after pass as long as things go wrong."""
        rng = self._rng
        while not self._world.is_calm:
            await asyncio.sleep(rng.uniform(*BETWEEN_SECONDS))
            if rng.random() < 0.7:
                self._plan()
                await asyncio.sleep(rng.uniform(*BETWEEN_SECONDS))
            limits = MergeLimits(
                file_bytes=rng.choice((100, PLENTY)),
                extent_bytes=rng.choice((150, 400, PLENTY)),
                batch_bytes=rng.choice((100, PLENTY)),
            )
            buffer_bytes = rng.choice((PLENTY, PLENTY, 3 * BYTES_PER_KEY))
            await self._clean(limits, buffer_bytes, rng.uniform(*TAKEN_OVER_AFTER_SECONDS))

    async def settle(self) -> None:
        """All is calm: a pass, another at once, and one when delete markers have expired leave one record per key, and
        what ends the log.
        """
        world = self._world
        if not world.keyed.places:
            return
        self._plan()
        await world.wait_for_the_late()
        for wait_seconds in (0.0, 0.0, RETENTION_MS / 1000 + 0.01):
            await asyncio.sleep(wait_seconds)
            await self._clean(MergeLimits(), PLENTY, None)
        for place in world.keyed.places:
            end, cleaned = world.end_of(place), self.database.cleaned_offsets.get(place.key, 0)
            seen = world.keyed.stored(place)
            if cleaned != end:
                world.report(Kind.STUCK, f"{place}: cleaned to {cleaned} of {end}")
            if self.database.model.partitions[place.key].log_start_offset < end and (
                not seen or seen[-1].offset != end - 1
            ):
                world.report(Kind.GAP, f"{place}: no record ends the log at {end}: {seen}")
            below = [record for record in seen if record.offset < end - 1]
            if len({record.key for record in seen}) < len(seen) or any(record.value is None for record in below):
                world.report(Kind.STUCK, f"{place}: not clean: {seen}")

    def _plan(self) -> None:
        """Active parts end, and files of level 0 are merged."""
        for place in self._world.keyed.places:
            self.database.roll_offsets[place.key] = self._world.end_of(place)
        self._world.compactor.merge_flushed(self._world.keyed.places, self._rng)

    async def _clean(self, limits: MergeLimits, buffer_bytes: int, patience: float | None) -> None:
        """One pass; after `patience` its worker has lost the job, if it still runs."""
        world, rng = self._world, random.Random(self._rng.getrandbits(64))
        self.database.epoch += 1
        epoch = self.database.epoch
        world.faults.count(Fault.CLEANED)
        world.note("clean", epoch, limits, buffer_bytes)
        worker: Any = Worker(world, FIRST_OWNER + epoch, rng)
        line = CleaningLine(self.database, Remote(world, worker, "metastore", LATENCY, rng), epoch)
        store = BucketLine(world, worker, rng)
        metrics = CleaningMetrics(CollectorRegistry())
        terms = CleaningTerms(limits, buffer_bytes)
        cleaner = Cleaner(store, nouns(line), world.plan.shards, terms, world.clock, rng, metrics)
        task = world.loop.create_task(self._handle(cleaner, epoch), context=worker.context)
        await asyncio.wait([task], timeout=patience)

    async def _handle(self, cleaner: Cleaner, epoch: int) -> None:
        tasks = tuple(CleaningTask(p.key, self._world.end_of(p), RETENTION_MS) for p in self._world.keyed.places)
        job = Job(JobToken(1, epoch), "clean", "", encode_cleaning(CleaningJob(tasks)), 1, "")
        api: Any = None  # the lease is not renewed
        try:
            await cleaner.handle(job, Lease(api, job, self._world.clock, claimed_at=0, lease_ms=1))
        except HeadraceError as error:
            self._world.note("pass failed", epoch, type(error).__name__)
        except Exception as error:
            self._world.report(Kind.CRASHED, f"pass of cleaning: {error!r}")
