"""Swaps a pass's files in, and ends the pass in the metastore.

Place: after passes.py; in the local worker (job.py) and on Spark's driver (spark/cleaning.py).
Invariant: each call is fenced by the job's lease. A swap names the cleaned offset that its pass relied on. The cleaned
offset moves on only if all swaps of the pass were done and every extent below it is one that the pass left.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence

from headrace.compactor.cleaning.metrics import CleaningMetrics
from headrace.compactor.cleaning.passes import Pass
from headrace.compactor.take_over import Swapper, record_lost
from headrace.metastore.api.cleaning import CleanedPartition, CleaningApi
from headrace.metastore.api.compaction import LivePartition, NewFile, Swap, SwapOutcome
from headrace.metastore.api.damage import DamagedExtent
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.metastore import Metastore
from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError, HeadraceError, NotFoundError, UnavailableError

logger = logging.getLogger(__name__)


class Ending:
    """What a worker tells the metastore about its passes."""

    def __init__(
        self, metastore: Metastore, commit_shards: int, clock: Clock, rng: random.Random, metrics: CleaningMetrics
    ) -> None:
        self._metastore, self._shards = metastore, commit_shards
        self._clock, self._rng, self._metrics = clock, rng, metrics

    async def swap_in(
        self,
        token: JobToken,
        file: NewFile,
        runs: Sequence[Sequence[Swap]],
        relied: Mapping[int, int],
        passes: Mapping[int, Pass],
    ) -> None:
        """Swap the extents of a stored file in, and note the outcomes in the passes that are still complete. By
        partition key: `relied`, the cleaned offset on which a swap relies; `passes`.
        """
        swapper = Swapper(_RelyingSwaps(self._metastore.cleaning, relied), self._shards, self._clock, self._rng)
        try:
            async for some, outcomes in swapper.swap_in(token, file, runs):
                for swap, outcome in zip(some, outcomes, strict=True):
                    if (cleaned := passes.get(swap.partition_key)) is not None:
                        cleaned.note_swap(file, swap, outcome)
        except FencedError:
            await record_lost(self._metastore.segments, token, file)
            raise
        except NotFoundError as error:
            raise UnavailableError(f"cleaned file has no row: error={error}") from error

    async def finish(self, token: JobToken, cleaned: Pass) -> None:
        """Move the cleaned offset on, if nothing of the pass was lost."""
        key = cleaned.plan.partition_key
        result = CleanedPartition(key, cleaned.end, tuple(sorted(cleaned.left)), cleaned.horizon_ms)
        is_done = not cleaned.is_lost and await self._metastore.cleaning.finish_cleaning(token, result)
        self._metrics.ended.labels("done" if is_done else "lost").inc()

    def leave_for_later(self, live: LivePartition, error: HeadraceError) -> None:
        """Mark nothing: the planner plans the partition again."""
        logger.warning(
            "partition not cleaned yet: topic_id=%s partition=%d error=%s", live.topic_id, live.partition_index, error
        )
        self._metrics.ended.labels("altered").inc()

    async def give_up(
        self, token: JobToken, live: LivePartition, why: str, damaged: DamagedExtent | None = None
    ) -> None:
        """Leave the partition out for a while; `damaged`: the extent that cannot be read."""
        logger.error(
            "partition not cleaned: topic_id=%s partition=%d error=%s", live.topic_id, live.partition_index, why
        )
        self._metrics.ended.labels("uncleanable").inc()
        if damaged is not None:
            await self._metastore.compaction.mark_damaged(token, [damaged])
        await self._metastore.cleaning.mark_uncleanable(token, live.partition_key, why)


class _RelyingSwaps:
    """A take_over.SwapApi: each swap names the cleaned offset that its pass relied on."""

    def __init__(self, metastore: CleaningApi, relied: Mapping[int, int]) -> None:
        self._metastore, self._relied = metastore, relied

    async def swap_extents(self, token: JobToken, file: NewFile, swaps: Sequence[Swap]) -> list[SwapOutcome]:
        cleaned = [self._relied[swap.partition_key] for swap in swaps]
        return await self._metastore.swap_cleaned_extents(token, file, swaps, cleaned)
