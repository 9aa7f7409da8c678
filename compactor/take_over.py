"""Replaces old extents by those of a merged file: first stored, then swapped in, call by call.

Place: after the merge; called by the local worker (compact.py), and by Spark's executors and driver (spark/).
Invariant: a file gets a row only after the bucket confirmed it, and each of its extents is live only after
its swap, under the job's lease. After a crash following the store, the file is an orphan for the sweeper; between two
calls, extents that are not swapped in are dead bytes and the old extents remain.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from typing import Protocol

from headrace.compactor.merge import MergedFile
from headrace.metastore.api.compaction import NewFile, Swap, SwapOutcome
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.keys import commit_shard
from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError, OutcomeUnknownError, RetryableError
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

SWAPS_PER_CALL = 64
INPUTS_PER_CALL = 4_000
"""About 100 ms of Postgres time, during which a partition's log start cannot move."""
SWAP_ATTEMPTS = 5
SWAP_PAUSE_SECONDS = 0.5


async def store_merged(
    store: ObjectStore, file: MergedFile, *, level: int, born_ms: int, rng: random.Random
) -> NewFile:
    """Put it under a new id with creation time `born_ms` (database clock). CorruptError if the stored size differs."""
    named = NewFile(new_file_id(born_ms, rng, level), level, len(file.body), file.body_bytes)
    stored = await store.put(object_key(named.file_id), file.body)
    if stored.size != named.size:
        raise CorruptError(f"stored length differs: key={stored.key} sent={named.size} stored={stored.size}")
    return named


class SwapApi(Protocol):
    """The part of the metastore that swaps need."""

    async def swap_extents(self, token: JobToken, file: NewFile, swaps: Sequence[Swap]) -> list[SwapOutcome]:
        """As CompactionApi.swap_extents."""


class Swapper:
    """Swaps the extents of stored files in, for local and Spark merges, and for cleaning by key."""

    def __init__(self, metastore: SwapApi, commit_shards: int, clock: Clock, rng: random.Random) -> None:
        self._metastore, self._shards = metastore, commit_shards
        self._clock, self._rng = clock, rng

    async def swap_in(
        self, token: JobToken, file: NewFile, swaps: Sequence[Swap]
    ) -> AsyncIterator[tuple[Sequence[Swap], list[SwapOutcome]]]:
        """Call by call; returns the outcome of each swap. FencedError if the lease is lost; else as
        `swap_extents`."""
        for call in calls(swaps, self._shards):
            yield call, await self._swap(token, file, call)

    async def _swap(self, token: JobToken, file: NewFile, swaps: Sequence[Swap]) -> list[SwapOutcome]:
        """Repeated while its outcome is unknown or it fails temporarily (for example a deadlock): a swap is
        idempotent.
        """
        for attempt in range(1, SWAP_ATTEMPTS + 1):
            try:
                return await self._metastore.swap_extents(token, file, swaps)
            except (RetryableError, OutcomeUnknownError) as error:
                logger.warning(
                    "swap failed or its outcome is unknown: file=%s attempt=%d error=%s", file.file_id, attempt, error
                )
                if attempt == SWAP_ATTEMPTS:
                    raise
            await self._clock.sleep(SWAP_PAUSE_SECONDS * attempt * self._rng.random())
        raise AssertionError("unreachable")


def calls(swaps: Sequence[Swap], shards: int) -> list[list[Swap]]:
    """The swaps in key order, split into calls: each call has one commit shard, so that none waits for two locks."""

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
