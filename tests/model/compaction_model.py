"""The reference model's swaps: CompactionApi.swap_extents in plain Python, in the two steps that it has.

Place: the part of tests/model/metastore_model.py that compaction talks to. Invariant: as there; a swap
is done or lost by itself. Leases of jobs are judged elsewhere (tests/model/job_model.py).
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Sequence

from headrace.metastore.api.compaction import Swap, SwapOutcome
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import Extent
from headrace.metastore.keys import commit_shard
from headrace.storage.file_id import born_ms
from tests.model.partition_model import ModelPartition

SwapCall = tuple[JobToken | None, uuid.UUID, tuple[Swap, ...]]


class ModelCompaction:
    """Knows partitions, and how to announce what took over."""

    shards: int
    partitions: dict[int, ModelPartition]
    leftovers: dict[int, list[Extent]]
    condemned: set[uuid.UUID]
    merged: set[uuid.UUID]
    appended_ms: dict[Extent, int]
    swap_answers: dict[SwapCall, list[SwapOutcome]]
    """The first answer of each call."""

    def _append_swap(self, shard: int, extents: Sequence[Extent]) -> None:
        raise NotImplementedError

    def decide_swaps(
        self, file_id: uuid.UUID, swaps: Sequence[Swap], closed: Collection[Swap] = (), token: JobToken | None = None
    ) -> tuple[list[SwapOutcome] | None, list[Extent]]:
        """The first step: (outcomes, the new extents), but readers are not told yet. No outcomes: the id is taken.

        A repeated call of a lease gets its first answer. `closed`: swaps of segments that another call has settled.
        """
        if file_id in self.condemned:
            return None, []
        if answered := self.swap_answers.get((token, file_id, tuple(swaps))):
            return answered, []
        self.merged.add(file_id)
        judged = [(self._was_done(file_id, s), s not in closed and self._stands(s), s) for s in swaps]
        taking_over = []
        for _, stands, swap in judged:
            if stands:
                new = Extent(*swap[:3], file_id, *swap[3:-1])
                partition = self.partitions[swap.partition_key]
                kept = [e for e in partition.extents if (e.last_offset, e.source) not in swap.inputs]
                self._keep_age(new, [e for e in partition.extents if (e.last_offset, e.source) in swap.inputs])
                partition.extents = sorted([*kept, new], key=lambda extent: extent.last_offset)
                taking_over.append(new)
        outcomes = [SwapOutcome.DONE if before or stands else SwapOutcome.LOST for before, stands, _ in judged]
        self.swap_answers[token, file_id, tuple(swaps)] = outcomes
        return outcomes, taking_over

    def announce_swaps(self, extents: Sequence[Extent]) -> None:
        """The second step: the feed rows. Commits may come between the two, a topic's deletion may not."""
        by_shard: dict[int, list[Extent]] = defaultdict(list)
        for extent in sorted(extents):
            if extent.partition_key in self.partitions:
                by_shard[commit_shard(extent.partition_key, self.shards)].append(extent)
        for shard, announced in sorted(by_shard.items()):
            self._append_swap(shard, announced)

    def _keep_age(self, new: Extent, inputs: Sequence[Extent]) -> None:
        """A merged extent is as old as the newest of its inputs."""
        timeless = [e for e in inputs if e in self.appended_ms or e.max_timestamp < 0]
        if timeless:
            self.appended_ms[new] = max(self.appended_ms.get(e, born_ms(e.source)) for e in timeless)

    def _was_done(self, file_id: uuid.UUID, swap: Swap) -> bool:
        """Return whether it was done by an earlier call; also if the topic was deleted since."""
        partition = self.partitions.get(swap.partition_key)
        extents = self.leftovers.get(swap.partition_key, []) if partition is None else partition.extents
        lasts = {entry.last_offset for entry in swap.inputs}
        return any(extent.source == file_id and extent.last_offset in lasts for extent in extents)

    def _stands(self, swap: Swap) -> bool:
        """Return whether each input is still there."""
        partition = self.partitions.get(swap.partition_key)
        if partition is None or swap.last_offset < partition.log_start_offset:
            return False
        there = {(extent.last_offset, extent.source) for extent in partition.extents}
        return all((last, file_id) in there for last, file_id in swap.inputs)
