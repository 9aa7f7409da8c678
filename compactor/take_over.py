"""Replaces old extents by those of a merged file: started, stored, then swapped in, call by call.

Place: after the merge; called by the local worker (compact.py), cleaning by key, and Spark (spark/).
Invariant: a file's id is reserved before anything is stored under it, by COPY_STARTED of all of its segments, or by
Spark's driver for its tasks (spark/reserved.py); each of its extents is live only after COPY_STARTED and its swap,
under the job's lease. After a crash in between, the cleanup ends segments and reservations (segments.py);
between two calls, extents that are not swapped in are dead bytes and the old extents remain. Below level 1 of
remote.log.metadata.compaction a file has no keys: after a crash following the store it is an orphan for the sweeper.
That path goes in the next release (docs/operate/UPGRADES.md). What inline files a merged file has records of is in the
bucket before they are swapped in (metastore/life/moved.py); Spark merges none.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Protocol

from headrace.compactor.merge import MergedFile
from headrace.compactor.plan import INPUTS_PER_SEGMENT
from headrace.metastore.api.compaction import NewFile, Swap, SwapOutcome
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.segments import NewSegment, SegmentApi, StartOutcome
from headrace.metastore.keys import commit_shard
from headrace.metastore.life.moved import MOVED_LEVEL, moved_ranges, write_moved
from headrace.storage.clock import Clock
from headrace.storage.errors import (
    CorruptError,
    HeadraceError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
    UnavailableError,
)
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

SEGMENTS_PER_CALL = 256
UPLOAD_ATTEMPTS = 2
SWAPS_PER_CALL = 64
INPUTS_PER_CALL = INPUTS_PER_SEGMENT
SWAP_ATTEMPTS = 5
SWAP_PAUSE_SECONDS = 0.5


async def store_merged(
    store: ObjectStore, file: MergedFile, *, file_id: uuid.UUID, level: int, if_absent: bool = False
) -> NewFile:
    """Put it under its id. CorruptError if the stored size differs; with `if_absent`, AlreadyExistsError if another
    attempt stored something there.
    """
    named = NewFile(file_id, level, len(file.body), file.body_bytes)
    stored = await store.put(object_key(named.file_id), file.body, if_absent=if_absent)
    if stored.size != named.size:
        raise CorruptError(f"stored length differs: key={stored.key} sent={named.size} stored={stored.size}")
    return named


class Uploads:
    """Starts and stores merged files under one lease."""

    def __init__(self, metastore: SegmentApi, store: ObjectStore, rng: random.Random) -> None:
        self._metastore, self._store, self._rng = metastore, store, rng

    async def store(self, token: JobToken, file: MergedFile, *, level: int, born_ms: int) -> NewFile:
        """Start its segments and put it under a new id. An upload that fails is tried once more, as another attempt at
        the same keys. FencedError if the lease is lost; UnavailableError if another lease must do it; else as
        `store_merged` and NotFoundError for an id that cannot be used.
        """
        for attempt in range(1, UPLOAD_ATTEMPTS + 1):
            file_id = new_file_id(born_ms, self._rng, level)
            is_keyed = await start(self._metastore, token, file_id, level, file.runs, self._rng)
            try:
                named = await store_merged(self._store, file, file_id=file_id, level=level)
                if level == MOVED_LEVEL:
                    await write_moved(self._store, file_id, moved_ranges(file.swaps))
                return named
            except (RetryableError, OutcomeUnknownError) as error:
                if attempt == UPLOAD_ATTEMPTS or not is_keyed:
                    raise
                logger.warning("upload failed, another attempt follows: file=%s error=%s", file_id, error)
        raise AssertionError("unreachable")


async def start(
    metastore: SegmentApi,
    token: JobToken,
    file_id: uuid.UUID,
    level: int,
    runs: Sequence[Sequence[Swap]],
    rng: random.Random,
    *,
    is_reserved: bool = False,
) -> bool:
    """Record COPY_STARTED for the runs of a file; False if it has no keys. Errors as Uploads.store.

    `is_reserved`: the file may be stored, so its id must be one that the lease reserved before; NotFoundError if not.
    """
    segments = [_segment(run, rng) for run in runs]
    return await start_segments(metastore, token, file_id, level, segments, is_reserved=is_reserved)


async def start_segments(
    metastore: SegmentApi,
    token: JobToken,
    file_id: uuid.UUID,
    level: int,
    segments: Sequence[NewSegment],
    *,
    is_reserved: bool = False,
) -> bool:
    """Start as `start` does, for segments that are only planned yet."""
    call = metastore.start_reserved_segments if is_reserved else metastore.start_segments
    for first in range(0, len(segments), SEGMENTS_PER_CALL):
        some = segments[first : first + SEGMENTS_PER_CALL]
        outcome = await call(token, file_id, level, some)
        if outcome is StartOutcome.KEYLESS:
            return False
        if outcome is StartOutcome.REFUSED:
            raise NotFoundError(f"file id cannot be used any more: file={file_id}")
        if outcome is StartOutcome.OVERTAKEN:
            raise UnavailableError(f"another lease has a higher epoch: file={file_id} epoch={token.epoch}")
    return True


def _segment(run: Sequence[Swap], rng: random.Random) -> NewSegment:
    return NewSegment(
        uuid.UUID(int=rng.getrandbits(128), version=4),
        run[0].partition_key,
        run[0].base_offset,
        run[-1].last_offset,
        run[0].leader_epoch,
        max(swap.max_timestamp for swap in run),
        sum(swap.length for swap in run),
    )


async def record_lost(metastore: SegmentApi, token: JobToken, file: NewFile) -> None:
    """After the lease was lost: say under its own keys that the upload is complete. The cleanup does without it."""
    with suppress(HeadraceError):
        await metastore.finish_lost_upload(token, file.file_id)


class SwapApi(Protocol):
    """The part of the metastore that swaps need."""

    async def swap_extents(self, token: JobToken, file: NewFile, swaps: Sequence[Swap]) -> list[SwapOutcome]:
        """Swap as CompactionApi.swap_extents does."""


class Swapper:
    """Swaps the extents of stored files in, for local and Spark merges, and for cleaning by key."""

    def __init__(self, metastore: SwapApi, commit_shards: int, clock: Clock, rng: random.Random) -> None:
        self._metastore, self._shards = metastore, commit_shards
        self._clock, self._rng = clock, rng

    async def swap_in(
        self, token: JobToken, file: NewFile, runs: Sequence[Sequence[Swap]]
    ) -> AsyncIterator[tuple[Sequence[Swap], list[SwapOutcome]]]:
        """Call by call; returns the outcome of each swap. FencedError if the lease is lost; else as
        `swap_extents`."""
        for call in calls(runs, self._shards):
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


def calls(runs: Sequence[Sequence[Swap]], shards: int) -> list[list[Swap]]:
    """The swaps in key order, split into calls, none within a segment. Each call has one commit shard, so that none
    waits for two locks."""

    def shard(run: Sequence[Swap]) -> int:
        return commit_shard(run[0].partition_key, shards)

    found: list[list[Swap]] = []
    in_order = sorted(runs, key=lambda run: (shard(run), run[0].partition_key, run[0].base_offset))
    for _, of_shard in groupby(in_order, key=shard):
        found.append([])
        inputs = 0
        for run in of_shard:
            more = sum(len(swap.inputs) for swap in run)
            if found[-1] and (len(found[-1]) + len(run) > SWAPS_PER_CALL or inputs + more > INPUTS_PER_CALL):
                found.append([])
                inputs = 0
            found[-1] += run
            inputs += more
    return found
