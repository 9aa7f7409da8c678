"""One compaction job from its claim to its end: plan, merge, store, swap, file by file.

Place: the handler of job kind "compact" in the job loop (runner.py).
Invariant: a file is named only after the bucket confirmed it, and its extents are live only after their
swap; each step goes under the job's lease. So whoever takes the job over makes a new plan of what is
still live in the inputs and goes on from there: nothing is undone. What the one before had stored and not
named is an orphan for the sweeper; what it had named and not swapped in is dead bytes.
If the process dies between two steps, no reader notices.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from itertools import groupby

from compactor.lease import Lease
from compactor.merge import MergeCounts, MergedFile, MergeLimits, merge
from compactor.metrics import CompactionMetrics
from compactor.plan import decode_job, make_plan
from metastore.compaction import CompactionApi, NewFile, Swap, SwapOutcome
from metastore.jobs import Job
from metastore.keys import commit_shard
from storage.clock import Clock
from storage.errors import CorruptError, OutcomeUnknownError, RetryableError
from storage.file_id import new_file_id, object_key
from storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

KIND = "compact"
SWAPS_PER_CALL = 64
INPUTS_PER_CALL = 4_000
"""About 100 ms of Postgres' time, for which a partition's log start cannot move."""
SWAP_ATTEMPTS = 5
SWAP_PAUSE_SECONDS = 0.5


class Compactor:
    """Carries out jobs of kind "compact"; one instance may work on several at a time."""

    def __init__(
        self,
        store: ObjectStore,
        metastore: CompactionApi,
        commit_shards: int,
        limits: MergeLimits,
        clock: Clock,
        rng: random.Random,
        metrics: CompactionMetrics,
    ) -> None:
        """`store` is this worker's own way to the bucket: throttled as its limits say."""
        self._store, self._metastore, self._shards = store, metastore, commit_shards
        self._limits, self._clock, self._rng, self._metrics = limits, clock, rng, metrics

    async def handle(self, job: Job, lease: Lease) -> None:
        """Merge the job's files as far as they are live. FencedError when the lease is lost; else as the store."""
        wanted = decode_job(job.payload)
        began = self._clock.monotonic()
        plan = make_plan(wanted.level, await self._metastore.live_extents(wanted.file_ids))
        counts, files = MergeCounts(), 0
        with self._metrics.merging(plan, counts):
            async for file in merge(plan, self._store, self._limits, counts):
                born_ms = plan.made_ms + round((self._clock.monotonic() - began) * 1000)
                await self._take_over(lease, plan.level, born_ms, file)
                files += 1
                lease.progress = f"files={files} batches={counts.batches_in}"
        if counts.unreadable_files:
            await self._metastore.mark_unreadable(lease.token, sorted(counts.unreadable_files))

    async def _take_over(self, lease: Lease, level: int, born_ms: int, file: MergedFile) -> None:
        """Store a merged file, then let it take over, call by call."""
        named = NewFile(new_file_id(born_ms, self._rng), level, len(file.body), file.body_bytes)
        stored = await self._store.put(object_key(named.file_id), file.body)
        if stored.size != named.size:
            raise CorruptError(f"stored length differs: key={stored.key} sent={named.size} stored={stored.size}")
        self._metrics.stored(level, named.size)
        for swaps in calls(file.swaps, self._shards):
            outcomes = await self._swap(lease, named, swaps)
            self._metrics.swapped(swaps, outcomes)

    async def _swap(self, lease: Lease, file: NewFile, swaps: Sequence[Swap]) -> list[SwapOutcome]:
        """Repeated while it is in doubt or cannot be done yet, a deadlock among that: a swap that is done is done."""
        for attempt in range(1, SWAP_ATTEMPTS + 1):
            try:
                return await self._metastore.swap_extents(lease.token, file, swaps)
            except (RetryableError, OutcomeUnknownError) as error:
                logger.warning("swap not answered: file=%s attempt=%d error=%s", file.file_id, attempt, error)
                if attempt == SWAP_ATTEMPTS:
                    raise
            await self._clock.sleep(SWAP_PAUSE_SECONDS * attempt * self._rng.random())
        raise AssertionError("unreachable")


def calls(swaps: Sequence[Swap], shards: int) -> list[list[Swap]]:
    """The swaps in key order, cut into calls: of one commit shard each, so that none waits for two locks."""

    def shard(swap: Swap) -> int:
        return commit_shard(swap.partition_key, shards)

    found: list[list[Swap]] = []
    for _, of_shard in groupby(sorted(swaps, key=lambda s: (shard(s), s.partition_key, s.base_offset)), key=shard):
        room = 0
        for number, swap in enumerate(of_shard):
            if number % SWAPS_PER_CALL == 0 or room <= 0:
                found.append([])
                room = INPUTS_PER_CALL
            found[-1].append(swap)
            room -= len(swap.inputs)
    return found
